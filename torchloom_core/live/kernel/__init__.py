"""The core: telemetry to plugins, proposals to the arbiter, grants to commands."""
