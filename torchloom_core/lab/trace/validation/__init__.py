"""The rules of a bundle, and what breaks them."""
