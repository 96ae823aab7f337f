"""Where the ranks' time has gone so far: into steps that were kept, or into what else.

It is told from what every rank says of itself anyway, its state and its step, a look a second. It
is not the goodput of a backtest, which knows what a checkpoint costs: here a step is worth the time
that it took, but for one that took far longer than steps usually do, and a rank that is given the
state of others has not made the steps that it skips.
"""

from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats, Ints

KEPT, AGAIN, WAITING, STANDBY, DOWN = "kept", "again", "waiting", "standby", "down"
KINDS = (KEPT, AGAIN, WAITING, STANDBY, DOWN)
"""What time goes into: steps that were kept, steps that were made again, ranks that are there and
make none, standbys, and ranks that are silent or failed."""

_WORK = "work"
_OF_STATE = {
    "training": _WORK,
    "draining": _WORK,
    "standby": STANDBY,
    "silent": DOWN,
    "failed": DOWN,
    "left": "",
    "ended": "",
}

_LONGEST_GAP_S = 5.0
"""Between two looks; what is longer was not looked at."""

_SLOW = 2.0
_GRAIN_S = 2.0
"""A step counts as slow that takes `_SLOW` times as long as usual, and so much beyond."""

_LONG_S = 10.0
_STEPS = 5.0
"""No step for so long, and for as long as so many steps usually take, is a standstill."""

_USUAL_LOOKS = 60
_BACK_S = 10.0
"""A run whose step lies behind the one of so long ago has gone back."""

_MOST_REACHED = 4096


class TimeAccount:
    """The books.

    Attributes
    ----------
    told : dict
        ``since_s``, since when, seconds since the epoch, and the rank-seconds of each of ``KINDS``;
        empty before the first look.
    run_step : int
        That the middle one has finished of the ranks that were at work last; -1 before the first.
    """

    def __init__(self, states: tuple[str, ...]) -> None:
        kinds = [_OF_STATE.get(name, WAITING) for name in states]
        self._is = {kind: np.array([one == kind for one in kinds]) for kind in (*KINDS, _WORK)}
        self._totals = dict.fromkeys(KINDS, 0.0)
        self._step: Ints = np.zeros(0, dtype=np.int64)
        self._furthest: Ints = np.zeros(0, dtype=np.int64)
        self._present_s: Floats = np.zeros(0)
        self._usual_s: deque[float] = deque(maxlen=_USUAL_LOOKS)
        self._reached: list[tuple[int, float, float]] = []
        self._since_s = self._last_s = 0.0
        self.told: dict[str, Any] = {}
        self.run_step = -1

    @property
    def usual_s(self) -> float:
        """How long a step usually takes; 0 before anybody knows."""
        return float(np.median(self._usual_s)) if self._usual_s else 0.0

    @property
    def standstill_s(self) -> float:
        """How long a rank that finishes no step has to have done so to stand still."""
        return max(_LONG_S, _STEPS * self.usual_s)

    def book(self, now_s: float, state: NDArray[np.uint8], step: Ints) -> None:
        """Look at all ranks, ``state`` and ``step`` of each row; the rows are those of before."""
        if not self.told:
            self._since_s = self._last_s = now_s
        took_s = now_s - self._last_s
        took_s = took_s if 0.0 < took_s <= _LONGEST_GAP_S else 0.0
        self._last_s = now_s
        known = len(self._step)
        self._step = np.concatenate([self._step, step[known:]])
        self._furthest = np.concatenate([self._furthest, step[known:]])
        self._present_s = np.concatenate([self._present_s, np.zeros(len(step) - known)])

        works, down = self._is[_WORK][state], self._is[DOWN][state]
        # Of steps that were begun and that nobody finishes.
        self._totals[DOWN] += float(self._present_s[down].sum())
        self._totals[WAITING] += float(self._present_s[~works & ~down].sum())
        for kind in (WAITING, STANDBY, DOWN):
            self._totals[kind] += took_s * int(self._is[kind][state].sum())
        self._present_s = np.where(works, self._present_s + took_s, 0.0)
        self._finish(works, step, took_s)
        self._look_back(now_s, works & (step >= 0), step)
        self._tell()

    def _finish(self, works: NDArray[np.bool_], step: Ints, look_s: float) -> None:
        """Book the steps that were finished since the last look, which was ``look_s`` ago."""
        count = step - self._step
        begun = works & (self._step < 0) & (step >= 0)  # until then it loaded and joined
        done = works & (self._step >= 0) & (count > 0)
        if done.any():
            took_s, steps = self._present_s[done], count[done]
            # All but the first were begun since the last look: what stood still made one at most.
            stood_s = np.maximum(took_s - look_s, 0.0)
            worth_s = np.minimum(
                self._worth(took_s, steps), self._worth(stood_s, 1) + np.minimum(took_s, look_s)
            )
            self._usual_s.append(float(np.median(took_s / steps)))
            self._totals[KEPT] += float(worth_s.sum())
            self._totals[WAITING] += float((took_s - worth_s).sum())
        self._totals[WAITING] += float(self._present_s[begun].sum())
        self._present_s[begun | done] = 0.0
        self._step = step.copy()

    def _worth(self, took_s: Floats, steps: Ints | int) -> Floats:
        """Return what steps are worth: the time they took, or of slow ones what is usual."""
        if not self._usual_s:
            return took_s
        usual_s = self.usual_s * steps
        return np.where(took_s > _SLOW * usual_s + _GRAIN_S, usual_s, took_s)

    def _look_back(self, now_s: float, counts: NDArray[np.bool_], steps: Ints) -> None:
        """Take back what was kept of steps that are made again.

        By most ranks: one that comes new and counts from 0, or tells of a step that nobody has
        come to, says nothing of the run.
        """
        step, furthest = steps[counts], self._furthest[counts]
        self._furthest[counts] = np.maximum(furthest, step)
        if not len(step):
            return
        run_step, reached = int(np.sort(step)[len(step) // 2]), self._reached
        self.run_step = run_step
        if not reached or run_step > reached[-1][0]:
            reached.append((run_step, self._totals[KEPT], now_s))
            if len(reached) > _MOST_REACHED:
                del reached[-2::-2]
            return
        before = bisect_right(reached, now_s - _BACK_S, key=lambda one: one[2])
        if not before or run_step >= reached[before - 1][0]:
            return
        if 2 * np.count_nonzero(step < furthest) <= len(step):
            return  # others than those who came so far
        self._furthest = np.minimum(self._furthest, run_step)
        rest = bisect_right(reached, run_step, key=lambda one: one[0])
        kept_s = reached[rest - 1][1] if rest else 0.0
        lost_s = reached[-1][1] - kept_s
        self._totals[KEPT] -= lost_s
        self._totals[AGAIN] += lost_s
        del reached[rest:]
        reached.append((run_step, self._totals[KEPT], now_s))

    def _tell(self) -> None:
        """Tell it as if each rank finished now the step that it is in."""
        worth_s = self._worth(self._present_s, 1)
        told = dict(self._totals)
        told[KEPT] += float(worth_s.sum())
        told[WAITING] += float((self._present_s - worth_s).sum())
        self.told = {"since_s": self._since_s, **told}
