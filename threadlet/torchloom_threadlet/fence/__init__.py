"""Changes that land on all ranks of a run between the same two steps, or on none."""
