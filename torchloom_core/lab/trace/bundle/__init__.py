"""A bundle on disk: its rows, its telemetry, its checksums."""
