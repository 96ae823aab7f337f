"""The bandwidth of the links over time, measures of each phase, and the tuner's choice in it."""

import itertools
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchloom_core.demos.scenario import NODE, Training
from torchloom_core.demos.steplog import StepLog

HEARTBEAT_S = 0.1
SETTLE_STEPS = 10
"""Steps after a change of bandwidth that do not count for the phase."""

TRAINING = Training(
    config="bandwidth.toml",
    heartbeat_s=HEARTBEAT_S,
    steps=100_000,
    step_ms=60.0,
    places=NODE.places[:3],
    options=("--width", "1024", "--lr", "0.005"),
)
_MIN_STEPS = 10

Row = Mapping[str, Any]


@cache
def quality_of_modes() -> dict[str, float]:
    """Return the quality of a step in each mode, from the demo's configuration."""
    quality = tomllib.loads(TRAINING.config_text())["policies"]["allreduce_tuner"]["quality"]
    return {str(mode): float(worth) for mode, worth in quality.items()}


@dataclass(frozen=True)
class Phase:
    """A time with a constant bandwidth of all links in each direction; None: unlimited."""

    mbit: float | None
    seconds: float

    @property
    def text(self) -> str:
        """The bandwidth as text."""
        return "unshaped" if self.mbit is None else f"{self.mbit:g} Mbit/s"


SCRIPT = (Phase(None, 12.0), Phase(200.0, 14.0), Phase(20.0, 20.0), Phase(200.0, 14.0))


@dataclass(frozen=True)
class Arm:
    """One run through the script, in which the tuner acts, or runs in shadow mode."""

    folder: str
    title: str
    tuned: bool


ARMS = (
    Arm("without", "no compression (tuner in shadow mode)", tuned=False),
    Arm("with", "with allreduce_tuner", tuned=True),
)


@dataclass(frozen=True)
class PhaseFigures:
    """The committed steps of one phase of one run.

    ``step_s`` is the median after the first few steps, NaN without more; ``modes`` are those of at
    least a tenth of the steps, in order of appearance.
    """

    steps: int
    step_s: float
    modes: tuple[str, ...]


def phases_of(log: StepLog, began: Sequence[float]) -> list[PhaseFigures]:
    """Return the figures of each phase; ``began`` also has the end of the last phase."""
    return [_figures(_between(log, *edges)) for edges in itertools.pairwise(began)]


def smooth_loss(rows: Sequence[Row]) -> list[float]:
    """Return the moving average of the loss over the last 15 steps."""
    losses = [row["loss"] for row in rows]
    return [statistics.fmean(losses[max(0, i - 14) : i + 1]) for i in range(len(losses))]


def committed(log: StepLog, since: float, until: float) -> list[Row]:
    """Return the committed steps between two times."""
    return [row for row in _between(log, since, until) if row["committed"]]


def _between(log: StepLog, since: float, until: float) -> list[Row]:
    return [row for row in log.steps if since < row["t"] <= until]


def _figures(rows: Sequence[Row]) -> PhaseFigures:
    done = [row for row in rows if row["committed"]]
    settled = [row["duration_s"] for row in done[SETTLE_STEPS:]]
    steps_of = Counter(map(_mode, done))
    usual = tuple(mode for mode, count in steps_of.items() if count >= 0.1 * len(done))
    return PhaseFigures(len(done), statistics.median(settled or [float("nan")]), usual)


Run = tuple[StepLog, Sequence[float]]
"""The step log of a group, the start of each phase, and the end of the last."""


@dataclass(frozen=True)
class Choice:
    """The mode of the tuner in a phase, after it had time to adapt: in the second half.

    ``mode`` is the mode most of the time, empty without a step; ``share`` is progress per second in
    it over that in the best measured mode, 0 to 1.
    """

    mode: str
    best: str
    share: float

    @property
    def text(self) -> str:
        """Mode and share as text."""
        than = f" of {self.best}" if self.best != self.mode else ""
        return f"{self.mode or 'no step'} {self.share:.2f}{than}"


def choices(tuned: Run, without: Run, quality: Mapping[str, float]) -> list[Choice]:
    """Return the choice in each phase of the script.

    Progress per second is the quality of a step, by the demo's configuration, over the step time,
    by the step logs of both runs at that bandwidth. Modes with few steps are not judged.
    """
    durations: dict[float | None, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for log, began in (tuned, without):
        for phase, edges in zip(SCRIPT, itertools.pairwise(began), strict=True):
            for number, row in enumerate(committed(log, *edges)):
                if number >= SETTLE_STEPS or row["t"] > statistics.fmean(edges):
                    durations[phase.mbit][_mode(row)].append(row["duration_s"])
    log, began = tuned
    chosen = []
    for phase, (start, end) in zip(SCRIPT, itertools.pairwise(began), strict=True):
        taken = durations[phase.mbit]
        progress = {mode: quality[mode] / statistics.median(taken[mode]) for mode in taken}
        mode = _usual_mode(committed(log, statistics.fmean((start, end)), end))
        candidates = [m for m in taken if m == mode or len(taken[m]) >= _MIN_STEPS]
        best = max(candidates, key=progress.__getitem__, default="")
        share = progress[mode] / progress[best] if mode else 0.0
        chosen.append(Choice(mode, best, share))
    return chosen


def _usual_mode(rows: Sequence[Row]) -> str:
    """Return the mode that was used most of the time; empty if there is no step."""
    seconds: Counter[str] = Counter()
    for row in rows:
        seconds[_mode(row)] += row["duration_s"]
    return max(seconds, key=seconds.__getitem__, default="")


def _mode(row: Row) -> str:
    return str(row["knobs"]["compression"])
