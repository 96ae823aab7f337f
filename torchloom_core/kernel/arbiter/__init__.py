"""Weigh what policies propose, within the rails, and say which rule decided."""

from torchloom_core.kernel.arbiter.arbiter import Arbiter

__all__ = ["Arbiter"]
