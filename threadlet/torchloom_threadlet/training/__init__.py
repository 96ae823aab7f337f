"""The objects behind the built-in training knobs: pure torch, with or without torchft."""
