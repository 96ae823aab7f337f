"""What the allreduce tuner is made of."""
