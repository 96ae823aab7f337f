"""Find the installed plugins, and build the ones that the config activates."""
