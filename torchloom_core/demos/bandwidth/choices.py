"""Compare the tuner's choice of mode with the best mode at each bandwidth.

Progress per second is the quality of a step, by the demo's configuration, over the step time, by
the step logs of both runs at that bandwidth. Modes with few steps are not judged.
"""

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloom_core.demos.bandwidth.phases import Row, committed
from torchloom_core.demos.bandwidth.script import SCRIPT, SETTLE_STEPS
from torchloom_core.demos.steplog import StepLog

_MIN_STEPS = 10

Run = tuple[StepLog, Sequence[float]]
"""The step log of a group, the start of each phase, and the end of the last."""


@dataclass(frozen=True)
class Choice:
    """The mode of the tuner in a phase, after it had time to adapt: in the second half.

    Attributes
    ----------
    mode, best : str
        The mode most of the time, empty without a step, and the best measured mode.
    share : float
        Progress per second in ``mode`` over that in ``best``, 0 to 1.
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
    """Return the choice in each phase of the script."""
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
