"""Results of simulated runs on a bandwidth trace, as ``report.json`` has them."""

from typing import Any

import msgspec

from torchloom_core.lab.evaluate.arm import ArmKind, Verdicts
from torchloom_core.lab.learning.forecast_score import Interval


class AllreduceRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: an arm under one seed. Times are seconds since its start.

    ``time_s`` to the required progress is None if the run was stopped before. ``progress`` is that
    at the end, in steps of the mode ``none``. ``in_mode`` has the share of the time in each mode,
    and ``decisions`` are granted actions that change something. ``modes`` has start and mode of
    each stretch, ``curve`` time and progress.
    """

    arm: str
    seed: int
    time_s: float | None
    wall_s: float
    progress: float
    steps: int
    switches: int
    in_mode: dict[str, float]
    decisions: int = 0
    operations: Verdicts = Verdicts()
    quarantined: dict[str, str] = {}
    silent: tuple[str, ...] = ()
    modes: tuple[tuple[float, str], ...] = ()
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def progress_per_h(self) -> float:
        """Progress per hour, in steps of the mode ``none``."""
        return self.progress / self.wall_s * 3600.0


class AllreduceArm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all seeds; progress is in steps of the mode ``none``.

    ``time_s`` to the required progress is None if a run was stopped before. ``speedup`` is the
    ratio of its progress per hour to that of the best static mode, seed by seed; None for that mode
    itself. ``to_oracle`` is a candidate's share of the oracle's gain over it; ``in_mode`` the mean
    share of the time in each mode.
    """

    name: str
    kind: ArmKind
    what: str
    time_s: Interval | None
    progress_per_h: Interval
    speedup: Interval | None = None
    to_oracle: float | None = None
    in_mode: dict[str, float] = {}
    switches: float = 0.0
    steps: float = 0.0
    decisions: float = 0.0
    operations: Verdicts = Verdicts()
    quarantined: dict[str, str] = {}
    silent: dict[str, int] = {}


class AllreduceSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop on a bandwidth trace: time to a fixed progress of every arm.

    ``job`` is ``[evaluate.allreduce]`` with the number of ranks, ``progress`` the required one, in
    steps of the mode ``none``, and ``reference`` the best static mode in hindsight. The recording
    is repeated after ``span_s``. ``slowest_link`` has times, and the bytes per second of the
    slowest link from then on.
    """

    job: dict[str, Any]
    seeds: tuple[int, ...]
    progress: float
    reference: str
    oracle: str
    span_s: float
    slowest_link: tuple[tuple[float, float], ...]
    arms: tuple[AllreduceArm, ...]
    runs: tuple[AllreduceRunResult, ...]
