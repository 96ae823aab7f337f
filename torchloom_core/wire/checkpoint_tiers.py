"""The tiers of a run's checkpoints, and what a trainer reports of them, by name."""

from typing import NamedTuple

MEMORY, PATH, REMOTE = "memory", "path", "remote"

SAVED, FAILED, NOT_COPIED = "checkpoint_saved", "checkpoint_failed", "checkpoint_not_copied"
"""The kinds of a trainer's notes of a save: ``tier``, ``step`` and ``seconds`` are their fields."""


class TierNames(NamedTuple):
    """What belongs to a tier.

    Attributes
    ----------
    knob : str
        The interval between two saves, seconds.
    unsaved : str
        The metric of the work that a failure would lose now which spares this tier, seconds.
    felt : str
        The metric of what a save costs the run, seconds.
    """

    knob: str
    unsaved: str
    felt: str


TIERS = {
    MEMORY: TierNames(
        "checkpoint_memory_interval_s", "unsaved_memory_s", "checkpoint_memory_felt_s"
    ),
    PATH: TierNames("checkpoint_interval_s", "unsaved_work_s", "checkpoint_felt_s"),
    REMOTE: TierNames(
        "checkpoint_remote_interval_s", "unsaved_remote_s", "checkpoint_remote_felt_s"
    ),
}
"""The tiers, the least durable first."""
