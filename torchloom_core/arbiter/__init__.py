"""Weigh what policies propose, within the rails, and say which rule decided."""

from torchloom_core.arbiter.arbiter import PERSON, Arbiter

__all__ = ["PERSON", "Arbiter"]
