"""Checkpoints on a storage: how they are laid out, written, listed and verified."""
