"""Which plugins are installed, and the active ones built as the config says."""
