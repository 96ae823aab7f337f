"""Keys, credentials and rights of everyone on the broker."""
