"""Rollouts of one role for the trainers of another, through the queue between them."""

from torchloom_threadlet.rollouts.sink import RolloutSink
from torchloom_threadlet.rollouts.source import Rollout, RolloutSource

__all__ = ["Rollout", "RolloutSink", "RolloutSource"]
