"""Generate synthetic traces: a fleet, its faults and its telemetry, from a seed."""
