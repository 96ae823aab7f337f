"""Measures of each phase of the script, from the step logs."""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom_core.demos.bandwidth.script import SETTLE_STEPS
from torchloom_core.demos.steplog import StepLog

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PhaseFigures:
    """One phase of one run.

    Attributes
    ----------
    steps : int
        Number of committed steps.
    step_s : float
        Median step time after the first few steps; NaN without further steps.
    modes : tuple of str
        Modes of at least a tenth of the steps, in order of appearance.
    """

    steps: int
    step_s: float
    modes: tuple[str, ...]


def phases_of(log: StepLog, began: Sequence[float]) -> list[PhaseFigures]:
    """Return the figures of each phase; ``began`` also has the end of the last phase."""
    return [_figures(_between(log, *edges)) for edges in itertools.pairwise(began)]


def smooth_loss(rows: Sequence[Row], over: int = 15) -> list[float]:
    """Return the moving average of the loss over the last ``over`` steps."""
    losses = [row["loss"] for row in rows]
    return [statistics.fmean(losses[max(0, i - over + 1) : i + 1]) for i in range(len(losses))]


def committed(log: StepLog, since: float, until: float) -> list[Row]:
    """Return the committed steps between two times."""
    return [row for row in _between(log, since, until) if row["committed"]]


def _between(log: StepLog, since: float, until: float) -> list[Row]:
    return [row for row in log.steps if since < row["t"] <= until]


def _figures(rows: Sequence[Row]) -> PhaseFigures:
    done = [row for row in rows if row["committed"]]
    settled = [row["duration_s"] for row in done[SETTLE_STEPS:]]
    steps_of = Counter(row["knobs"]["compression"] for row in done)
    usual = tuple(mode for mode, count in steps_of.items() if count >= 0.1 * len(done))
    return PhaseFigures(len(done), statistics.median(settled or [float("nan")]), usual)
