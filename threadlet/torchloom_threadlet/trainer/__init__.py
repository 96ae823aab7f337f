"""What runs in the training process: a few microseconds a step, no NATS, no numpy."""
