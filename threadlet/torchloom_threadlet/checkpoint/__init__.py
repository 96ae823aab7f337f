"""Checkpoints that a run saves by itself: copied between two steps, stored by another process."""
