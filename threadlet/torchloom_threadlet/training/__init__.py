"""What the built-in knobs of training act on: pure torch, to be used with torchft or without."""
