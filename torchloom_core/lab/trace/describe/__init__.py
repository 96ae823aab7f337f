"""Summarise a bundle in figures and in a plot."""
