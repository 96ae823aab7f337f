"""Every message, action and event: plain values without I/O, all of core that a Threadlet needs."""
