"""A bundle made of a trajectory."""
