"""Changes that all ranks of a run make between the same two steps, or none does."""
