"""Make a bundle from a trajectory."""
