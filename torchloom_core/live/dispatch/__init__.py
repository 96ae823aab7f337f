"""Turn granted actions into commands, and their acks into outcomes."""
