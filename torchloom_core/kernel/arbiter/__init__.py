"""Weigh what policies propose, within the safety limits, and say which rule decided."""

from torchloom_core.kernel.arbiter.arbiter import Arbiter

__all__ = ["Arbiter"]
