"""Weigh the proposals of policies within the safety limits; name the rule that decided."""

from torchloom_core.live.kernel.arbiter.arbiter import Arbiter

__all__ = ["Arbiter"]
