"""Synthetic traces: a fleet, its faults and its telemetry from a seed, one bundle at the end."""

from torchloom_core.trace.synthesize.parameters import Parameters
from torchloom_core.trace.synthesize.trace import synthesize

__all__ = ["Parameters", "synthesize"]
