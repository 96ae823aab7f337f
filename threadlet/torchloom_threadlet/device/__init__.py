"""Measures a training process on its GPU, without waiting for it."""
