"""The state of the fleet in columns: workers, their telemetry, and the view for policies."""
