"""The active plugins, called so that a failure of one does not affect another."""
