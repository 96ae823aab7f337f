"""Probes of the links between workers: sidecars send to each other while trainers train."""
