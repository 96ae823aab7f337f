"""Synthetic traces: a fleet, its faults and its telemetry from a seed, one bundle at the end."""
