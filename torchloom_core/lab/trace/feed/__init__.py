"""Play a bundle to a kernel: placement, telemetry and faults."""
