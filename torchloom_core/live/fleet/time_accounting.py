"""Account for the ranks' time: useful steps, recomputed steps, stalls, standbys and outages.

The account uses only the state and the step that every rank reports, once a second. It is not the
goodput of a backtest, which knows what a checkpoint costs: here a step counts with the time it
took, a step that took far longer than usual counts with the usual time, and a rank that receives
its peers' state is not credited for the steps it skips. A new job counts its steps anew: nothing is
recomputed.
"""

from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints

USEFUL, RECOMPUTED, STALLED, STANDBY, DOWN = "useful", "recomputed", "stalled", "standby", "down"
KINDS = (USEFUL, RECOMPUTED, STALLED, STANDBY, DOWN)
"""Useful steps, steps that had to be trained again, ranks that are reachable and finish no step,
standbys, and ranks that are unreachable or failed."""

_WORK = "work"
_OF_STATE = {
    "training": _WORK,
    "draining": _WORK,
    "standby": STANDBY,
    "unreachable": DOWN,
    "failed": DOWN,
    "left": "",
    "ended": "",
}

_LONGEST_GAP_S = 5.0
"""A longer gap between two updates was not observed, and is not accounted for."""

_SLOW = 2.0
_GRAIN_S = 2.0
"""A step is slow if it takes `_SLOW` times the usual time and this much more, seconds."""

_LONG_S = 10.0
_STEPS = 5.0
"""A rank is stalled after this long, and after the usual time of this many steps."""

_USUAL_SAMPLES = 60
_BACK_S = 10.0
"""A run whose step is below the one of this long ago has gone back."""

_RATE_SAMPLES = 31
"""Updates over which the rate of steps is measured, one a second."""

_MOST_REACHED = 4096


class TimeAccount:
    """Rank-seconds by kind.

    ``shares`` has ``since_s``, the begin in seconds since the epoch, and the rank-seconds of each
    of ``KINDS``; it is empty before the first update. ``run_step`` is the median of the last
    finished steps of the working ranks, -1 before the first.
    """

    def __init__(self, states: tuple[str, ...]) -> None:
        kinds = [_OF_STATE.get(name, STALLED) for name in states]
        self._is = {kind: np.array([one == kind for one in kinds]) for kind in (*KINDS, _WORK)}
        self._totals = dict.fromkeys(KINDS, 0.0)
        self._step: Ints = np.zeros(0, dtype=np.int64)
        self._furthest: Ints = np.zeros(0, dtype=np.int64)
        self._job: Ints = np.zeros(0, dtype=np.int64)
        self._present_s: Floats = np.zeros(0)
        self._usual_s: deque[float] = deque(maxlen=_USUAL_SAMPLES)
        self._reached: list[tuple[int, float, float]] = []
        self._rate: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES)
        self._since_s = self._last_s = 0.0
        self.shares: dict[str, Any] = {}
        self.run_step = -1

    @property
    def usual_s(self) -> float:
        """The usual time of a step; 0 before it is known."""
        return float(np.median(self._usual_s)) if self._usual_s else 0.0

    @property
    def stalled_after_s(self) -> float:
        """A rank that finishes no step for longer than this is stalled."""
        return max(_LONG_S, _STEPS * self.usual_s)

    @property
    def steps_per_s(self) -> float | None:
        """Steps of the run per second over the last half minute; None before it is known."""
        if len(self._rate) < 2:
            return None
        (begin_s, begin), (end_s, end) = self._rate[0], self._rate[-1]
        return max(0.0, (end - begin) / (end_s - begin_s)) if end_s > begin_s else None

    def update(self, now_s: float, state: NDArray[np.uint8], step: Ints, job: Ints) -> None:
        """Take ``state``, ``step`` and number of the job of each row; rows stay in place."""
        if not self.shares:
            self._since_s = self._last_s = now_s
        took_s = now_s - self._last_s
        took_s = took_s if 0.0 < took_s <= _LONGEST_GAP_S else 0.0
        self._last_s = now_s
        known = len(self._step)
        self._step = np.concatenate([self._step, step[known:]])
        self._furthest = np.concatenate([self._furthest, step[known:]])
        self._job = np.concatenate([self._job, job[known:]])
        self._present_s = np.concatenate([self._present_s, np.zeros(len(step) - known)])

        works, down = self._is[_WORK][state], self._is[DOWN][state]
        # Steps that were begun and that no rank will finish.
        self._totals[DOWN] += float(self._present_s[down].sum())
        self._totals[STALLED] += float(self._present_s[~works & ~down].sum())
        for kind in (STALLED, STANDBY, DOWN):
            self._totals[kind] += took_s * int(self._is[kind][state].sum())
        self._present_s = np.where(works, self._present_s + took_s, 0.0)
        self._finish(works, step, took_s)
        self._go_back(now_s, works & (step >= 0), step, job)
        if self.run_step >= 0:
            self._rate.append((now_s, self.run_step))
        self._publish()

    def _finish(self, works: NDArray[np.bool_], step: Ints, interval_s: float) -> None:
        """Account for the steps finished since the last update, ``interval_s`` ago."""
        count = step - self._step
        begun = works & (self._step < 0) & (step >= 0)  # until then the rank loaded and joined
        done = works & (self._step >= 0) & (count > 0)
        if done.any():
            took_s, steps = self._present_s[done], count[done]
            # All steps but the first began since the last update: a stall belongs to one at most.
            stood_s = np.maximum(took_s - interval_s, 0.0)
            worth_s = np.minimum(
                self._worth(took_s, steps), self._worth(stood_s, 1) + np.minimum(took_s, interval_s)
            )
            self._usual_s.append(float(np.median(took_s / steps)))
            self._totals[USEFUL] += float(worth_s.sum())
            self._totals[STALLED] += float((took_s - worth_s).sum())
        self._totals[STALLED] += float(self._present_s[begun].sum())
        self._present_s[begun | done] = 0.0
        self._step = step.copy()

    def _worth(self, took_s: Floats, steps: Ints | int) -> Floats:
        """Return what steps count for: the time they took, or the usual time of slow ones."""
        if not self._usual_s:
            return took_s
        usual_s = self.usual_s * steps
        return np.where(took_s > _SLOW * usual_s + _GRAIN_S, usual_s, took_s)

    def _go_back(self, now_s: float, counts: NDArray[np.bool_], steps: Ints, job: Ints) -> None:
        """Move the time of steps that are trained again from useful to recomputed.

        The majority of ranks decides: a new rank that counts from 0, or one that reports a step
        that no other has reached, says nothing about the run. If most ranks that went back are in
        another job than before, their steps are new.
        """
        step, furthest = steps[counts], self._furthest[counts]
        self._furthest[counts] = np.maximum(furthest, step)
        if not len(step):
            return
        run_step, reached = int(np.sort(step)[len(step) // 2]), self._reached
        self.run_step = run_step
        if not reached or run_step > reached[-1][0]:
            self._job[counts] = job[counts]
            reached.append((run_step, self._totals[USEFUL], now_s))
            if len(reached) > _MOST_REACHED:
                del reached[-2::-2]
            return
        before = bisect_right(reached, now_s - _BACK_S, key=lambda one: one[2])
        if not before or run_step >= reached[before - 1][0]:
            return
        went_back = step < furthest
        if 2 * np.count_nonzero(went_back) <= len(step):
            return  # these are not the ranks that came so far
        is_new_job = np.median((job != self._job)[counts][went_back]) > 0
        self._furthest, self._job = np.minimum(self._furthest, run_step), job.copy()
        if is_new_job:
            reached[:] = [(run_step, self._totals[USEFUL], now_s)]
            return
        rest = bisect_right(reached, run_step, key=lambda one: one[0])
        useful_s = reached[rest - 1][1] if rest else 0.0
        lost_s = reached[-1][1] - useful_s
        self._totals[USEFUL] -= lost_s
        self._totals[RECOMPUTED] += lost_s
        del reached[rest:]
        reached.append((run_step, self._totals[USEFUL], now_s))

    def _publish(self) -> None:
        """Set ``shares`` as if each rank finished its present step now."""
        worth_s = self._worth(self._present_s, 1)
        shares = dict(self._totals)
        shares[USEFUL] += float(worth_s.sum())
        shares[STALLED] += float((self._present_s - worth_s).sum())
        self.shares = {"since_s": self._since_s, **shares}
