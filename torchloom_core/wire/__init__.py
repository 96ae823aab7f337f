"""Messages, actions and events as plain values; the only part of core that a Threadlet needs."""
