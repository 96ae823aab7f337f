"""A lighthouse for torchft that detects failures at once, saves its state and can be steered."""
