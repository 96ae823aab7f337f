"""Keys, credentials and permissions on the broker."""
