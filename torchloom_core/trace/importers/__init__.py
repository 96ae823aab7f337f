"""Make trace bundles of what others recorded; one module a source."""
