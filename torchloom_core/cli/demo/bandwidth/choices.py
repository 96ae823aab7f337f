"""Whether the tuner chose well: what its mode makes of the progress that another would have made.

Progress a second is the worth of a step, by the demo's configuration, over what a step takes, by
what both runs wrote down at that bandwidth. Modes in which they made few steps are not judged.
"""

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloom_core.cli.demo.bandwidth.phases import Row, committed
from torchloom_core.cli.demo.bandwidth.script import SCRIPT, SETTLE_STEPS
from torchloom_core.cli.demo.steplog import StepLog

_KNOWN_STEPS = 10

Run = tuple[StepLog, Sequence[float]]
"""What a group wrote, and when each phase began, and the last one ended."""


@dataclass(frozen=True)
class Choice:
    """What the tuner had chosen once it had had time to see the bandwidth, and to try modes.

    That is the mode of most of a phase's second half.

    Attributes
    ----------
    mode, best : str
        The one it was in, empty if there was no step, and the best that is known there.
    share : float
        Progress a second in the one over that in the other, 0 to 1.
    """

    mode: str
    best: str
    share: float

    @property
    def text(self) -> str:
        """Mode and share, for people."""
        than = f" of {self.best}" if self.best != self.mode else ""
        return f"{self.mode or 'no step'} {self.share:.2f}{than}"


def choices(tuned: Run, without: Run, quality: Mapping[str, float]) -> list[Choice]:
    """Return what was chosen in each phase of the script."""
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
        known = [m for m in taken if m == mode or len(taken[m]) >= _KNOWN_STEPS]
        best = max(known, key=progress.__getitem__, default="")
        share = progress[mode] / progress[best] if mode else 0.0
        chosen.append(Choice(mode, best, share))
    return chosen


def _usual_mode(rows: Sequence[Row]) -> str:
    """Return the mode in which most of the time went by; empty if there is no step."""
    seconds: Counter[str] = Counter()
    for row in rows:
        seconds[_mode(row)] += row["duration_s"]
    return max(seconds, key=seconds.__getitem__, default="")


def _mode(row: Row) -> str:
    return str(row["knobs"]["compression"])
