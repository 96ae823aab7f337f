"""What each failure of the job lost, and what it would have lost without the nearer tiers."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom_core.checkpoints.layout import Folder
from torchloom_core.demos.steplog import StepLog
from torchloom_core.live.trajectory.recovery_phases import Recovery
from torchloom_core.wire.checkpoint_tiers import REMOTE, TIERS

_RECENT = 50
_NEAR_S = 5.0


@dataclass(frozen=True)
class Save:
    """A checkpoint that was seen to be complete in a tier, ``at`` s since the epoch."""

    tier: str
    folder: Folder
    at: float


@dataclass(frozen=True)
class Moment:
    """The job right before a failure.

    Attributes
    ----------
    at : float
        When, s since the epoch.
    step : int
        The last step that any rank finished.
    step_s : float
        The usual time of a step, seconds.
    newest : dict of str to int
        Tier to the step of its newest complete checkpoint, -1 without one.
    every_s : dict of str to float
        Tier to its interval, seconds.
    """

    at: float
    step: int
    step_s: float
    newest: dict[str, int]
    every_s: dict[str, float]


@dataclass(frozen=True)
class Incident:
    """A failure, and the recovery from it.

    Attributes
    ----------
    text : str
        What failed.
    before : Moment
        The job right before it.
    from_step : int
        The step of the checkpoint that was restored; -1: the job began anew.
    tiers : tuple of str
        The tiers that had this checkpoint after the failure.
    back_at : float
        When the last rank had finished its first step again, s since the epoch.
    """

    text: str
    before: Moment
    from_step: int
    tiers: tuple[str, ...]
    back_at: float

    @property
    def seconds(self) -> float:
        """From the failure until all ranks trained again, seconds."""
        return self.back_at - self.before.at

    @property
    def lost_steps(self) -> int:
        """The steps that had to be trained again."""
        return self.before.step - self.from_step

    @property
    def lost_steps_by_remote(self) -> int:
        """The steps that would have been lost with the remote tier alone."""
        return self.before.step - self.before.newest[REMOTE]

    def seconds_of(self, steps: int) -> float:
        """Return the usual time of so many steps, seconds."""
        return steps * self.before.step_s

    def recovery_in(self, recoveries: Sequence[Recovery]) -> Recovery | None:
        """Return the Weaver's account of it, None if there is none."""
        near = [one for one in recoveries if abs(one.lost_ns / 1e9 - self.before.at) < _NEAR_S]
        return min(near, key=lambda one: abs(one.lost_ns / 1e9 - self.before.at), default=None)


def moment(at: float, ranks: Sequence[StepLog], complete: Mapping[str, set[Folder]]) -> Moment:
    """Return the job as it is now, by its ranks' steps and the checkpoints there are."""
    rows = ranks[0].steps[-_RECENT:]
    own = [row["t"] for row in rows if row["pid"] == rows[-1]["pid"]]
    durations = [after - before for before, after in itertools.pairwise(own)]
    return Moment(
        at=at,
        step=max(log.steps[-1]["step"] for log in ranks),
        step_s=statistics.median(durations) if durations else 0.0,
        newest={tier: newest_step(complete[tier]) for tier in TIERS},
        every_s=dict(rows[-1]["every_s"]),
    )


def newest_step(folders: set[Folder]) -> int:
    """Return the step of the newest of these checkpoints, -1 without one."""
    return max(folders).step if folders else -1


def first_rows(ranks: Sequence[StepLog], before: set[int]) -> list[dict[str, Any]]:
    """Return the first step of each rank in a process that is not one of these, as far as known."""
    of_ranks = ((row for row in log.steps if row["pid"] not in before) for log in ranks)
    return [row for rows in of_ranks for row in itertools.islice(rows, 1)]


def differing(ranks: Sequence[StepLog], undisturbed: Sequence[StepLog]) -> tuple[int, list[str]]:
    """Compare all losses, bit by bit, with those of an undisturbed run.

    Returns the number of losses compared, and each step with another loss, in words. A step that
    was trained twice is compared twice; one that the undisturbed run lacks differs.
    """
    compared, others = 0, []
    for rank, (log, reference) in enumerate(zip(ranks, undisturbed, strict=True)):
        expected = {row["step"]: row["loss"] for row in reference.steps}
        for row in log.steps:
            compared += 1
            if expected.get(row["step"]) != row["loss"]:
                others.append(
                    f"rank {rank}, step {row['step']}: {row['loss']!r}, undisturbed "
                    f"{expected.get(row['step'])!r}"
                )
    return compared, others
