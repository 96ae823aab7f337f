"""Gate nodes by the results of a benchmark: list those that are off, and cordon them."""
