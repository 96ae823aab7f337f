"""What there is in a bundle, in figures and in a plot."""
