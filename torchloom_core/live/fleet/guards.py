"""Compare a metric before and after a change, to roll back a change that made the run worse.

Each guard metric has one value per tick: the median over training workers. Its level and noise
before a change are measured when the change is applied, and compared with the values since when
its window ends, or as soon as the result is clear. Values from before a run started over are not
compared with later ones.
"""

import statistics
from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from torchloom_core.config import schema
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.arrays import Ints
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.actions import Action, ChangeKnobs, Guard
from torchloom_core.wire.decisions import Judged
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.plans import Plan, Watch

_MAX_VALUES = 4096
_FEWEST = 5
"""Least values before and after a change for a verdict."""
_JITTER_NS = SECOND_NS // 4
"""Largest difference between reports of the same step."""
_CLEAR = 3.0
"""A change is judged before its window ends if the metric is this multiple of the band off."""
_DECAY = 0.99
"""Decay per tick of the usual share of workers that report a metric."""
_LARGEST = 1e100
"""Larger values are no measurements, and their squares overflow."""
_AGAIN_NS = 10 * SECOND_NS
TRIES = 5
"""Attempts of a rollback; the second one comes after ``_AGAIN_NS``, each further one after twice
as long."""
_LEAST_NOISE = 1e-3
"""Least noise relative to the level: smaller differences are not worth a rollback."""


class FurthestSteps:
    """The highest step of each row, over all of its incarnations.

    Attributes
    ----------
    most : int
        The highest median step so far, -1 before any: a single wrong report does not move it.
    """

    def __init__(self) -> None:
        self._of_row: Ints = np.full(0, -1, dtype=np.int64)
        self.most = -1

    def went_back(self, rows: Ints, steps: Ints) -> bool:
        """Take the current steps of rows; return whether all of them are earlier than before.

        A worker that rejoins alone is behind the others for a while; if all are behind, the run
        started over, and the steps so far are dropped.
        """
        if not len(rows):
            return False
        more = int(rows.max()) + 1 - len(self._of_row)
        if more > 0:
            self._of_row = np.pad(self._of_row, (0, more), constant_values=-1)
        before = self._of_row[rows]
        back = bool(np.all(steps < np.where(before < 0, self.most, before)))
        if back:
            self._of_row[:] = self.most = -1
        self._of_row[rows] = np.maximum(self._of_row[rows], steps)
        self.most = max(self.most, int(np.median(steps)))
        return back


class Guards:
    """The guard metrics of a run, and the changes that they watch.

    Attributes
    ----------
    watches : PersistentTable of Watch
        By the verdict whose change is, or will be, watched.
    """

    def __init__(self, fleet: FleetState, config: schema.Guard) -> None:
        self._fleet = fleet
        self._default = config
        self._seen: dict[str, deque[tuple[int, float]]] = {
            metric: deque(maxlen=_MAX_VALUES) for metric in config.metrics
        }
        self._share: dict[str, float] = {}
        self._steps_ns: deque[int] = deque(maxlen=_MAX_VALUES)
        self._progress_ns = 0
        self._furthest = FurthestSteps()
        self.watches: PersistentTable[Watch] = PersistentTable("watch")

    def obstacle(self, guard: Guard | None) -> str:
        """Return why the guard cannot watch its metric, or ""."""
        if guard is None:
            return ""
        seen = self._seen.get(guard.metric)
        if seen is None:
            metrics = ", ".join(self._seen)
            return f"guard: need a metric of guard.metrics ({metrics}), was {guard.metric!r}"
        if not seen:
            return f"guard: no training worker reports {guard.metric}"
        return ""

    def look(self, now_ns: int) -> list[Judged]:
        """Add one value of each metric: its median over training workers.

        Return the watches that end because the run started over.
        """
        if not self._seen:
            return []
        rows = [row for row, state in enumerate(self._fleet.state) if state == "training"]
        if not rows:
            return []
        was_at = self._furthest.most
        went_back = self._furthest.went_back(*self._fleet.times.current_steps(rows, now_ns))
        ended = self._begin_anew(was_at) if went_back else []
        progress_ns = int(np.median(self._fleet.times.progress_ns[rows]))
        if progress_ns > self._progress_ns + _JITTER_NS:
            self._progress_ns = progress_ns
            self._steps_ns.append(now_ns)
        for metric, seen in self._seen.items():
            values = self._fleet.last_column(metric)[rows]
            values = values[~np.isnan(values)]
            # The median of a few would hide that the others report NaN.
            share, usual = len(values) / len(rows), self._share.get(metric, 0.0)
            self._share[metric] = max(share, usual * _DECAY)
            if len(values) and share >= usual / 2:
                seen.append((now_ns, float(np.median(values))))
        return ended

    def newest(self, metric: str) -> float | None:
        """Return the newest median of a guard metric, or None."""
        seen = self._seen.get(metric)
        return seen[-1][1] if seen else None

    def _begin_anew(self, was_at: int) -> list[Judged]:
        """Drop all measurements, and end the watches that depend on them."""
        self._steps_ns.clear()
        for seen in self._seen.values():
            seen.clear()
        text = f"not watched: the run went back from step {was_at} to {self._furthest.most}"
        ended = []
        for watch in [watch for watch in self.watches.values() if not watch.hurt]:
            if watch.since_ns:
                del self.watches[watch.verdict]
                ended.append(_unjudged(watch, text))
            else:
                offered = msgspec.structs.replace(watch, level=0.0, noise=0.0)
                self.watches[watch.verdict] = offered
        return ended

    def end_all(self, why: str) -> list[Judged]:
        """End all watches: a new job has begun, which the changes before it do not concern."""
        ended = [_unjudged(w, why) for w in self.watches.values() if w.since_ns and not w.hurt]
        self.watches.clear()
        return ended

    def expect(self, plan: Plan, before: KnobValues, now_ns: int) -> None:
        """Store the knobs and the metric before a change is offered.

        The Weaver that learns that it was applied may have started after it.
        """
        guard = self._guard_of(plan.action)
        if guard is None or not before:
            return
        level, noise = self._level(guard, now_ns)
        self.watches[plan.verdict] = Watch(
            verdict=plan.verdict,
            guard=guard,
            before=before,
            level=level,
            noise=noise,
            step=self._furthest.most,
        )

    def know_before(self, verdict: str, before: KnobValues) -> None:
        """Roll back to the values that a worker had, of a change whose watch has not begun."""
        watch = self.watches.get(verdict)
        if watch is not None and not watch.since_ns:
            values = {name: before.get(name, value) for name, value in watch.before.items()}
            self.watches[verdict] = msgspec.structs.replace(watch, before=values)

    def begin(self, verdict: str, now_ns: int) -> None:
        """Watch a change that was applied, together with an earlier one that is still watched.

        Both are compared with, and roll back to, the state before the earlier one.
        """
        watch = self.watches.get(verdict)
        if watch is None:
            return
        guard, before = watch.guard, watch.before
        upon: tuple[str, ...] = ()
        level, noise = (watch.level, watch.noise) if watch.noise else self._level(guard, now_ns)
        for earlier in [w for w in self.watches.values() if w.since_ns and not w.hurt]:
            if earlier.guard.metric == guard.metric:
                del self.watches[earlier.verdict]
                level, noise, before = earlier.level, earlier.noise, {**before, **earlier.before}
                upon = (*upon, *earlier.upon, earlier.verdict)
        self.watches[verdict] = msgspec.structs.replace(
            watch, before=before, upon=upon, level=level, noise=noise, since_ns=now_ns
        )

    def text(self, verdict: str) -> str:
        """Return a clause on how the change that was just applied is watched."""
        watch = self.watches.get(verdict)
        if watch is None:
            return ""
        guard = watch.guard
        if not watch.noise:
            return f"; not watched: too few values of {guard.metric} before the change"
        return f"; {guard.metric} is watched for {guard.window_s:g} s"

    def forget(self, verdict: str) -> None:
        """Drop the watch of a change that was not made."""
        self.watches.pop(verdict, None)

    def judge(self, now_ns: int) -> list[Judged]:
        """Judge the changes whose window is over, or whose result is clear."""
        watched = [w for w in self.watches.values() if w.since_ns and not w.hurt]
        judged = [j for watch in watched if (j := self._judge(watch, now_ns))]
        for judgement in judged:
            watch = self.watches.pop(judgement.verdict)
            if judgement.hurt:
                self.watches[watch.verdict] = msgspec.structs.replace(watch, hurt=judgement.text)
        return judged

    def to_take_back(self, now_ns: int) -> list[Watch]:
        """Return the changes to roll back now; a denied rollback is retried later."""
        due = []
        for watch in [watch for watch in self.watches.values() if watch.hurt]:
            if watch.tries and now_ns < watch.tried_ns + _AGAIN_NS * 2 ** (watch.tries - 1):
                continue
            if watch.tries == TRIES:
                del self.watches[watch.verdict]
                continue
            tried = msgspec.structs.replace(watch, tries=watch.tries + 1, tried_ns=now_ns)
            self.watches[watch.verdict] = tried
            due.append(tried)
        return due

    def taken_back(self, values: KnobValues) -> None:
        """Drop the watches whose change has been rolled back."""
        for watch in [watch for watch in self.watches.values() if watch.hurt]:
            if watch.before == values:
                del self.watches[watch.verdict]

    def restore(self, watches: Iterable[Watch], now_ns: int) -> None:
        """Restore the watches of an earlier Weaver, if their metrics are still guard metrics.

        Its clock may have been ahead.
        """
        for watch in watches:
            self._furthest.most = max(self._furthest.most, watch.step)
            if watch.guard.metric in self._seen:
                since_ns, tried_ns = min(watch.since_ns, now_ns), min(watch.tried_ns, now_ns)
                self.watches[watch.verdict] = msgspec.structs.replace(
                    watch, since_ns=since_ns, tried_ns=tried_ns
                )

    def _judge(self, watch: Watch, now_ns: int) -> Judged | None:
        guard, window_ns = watch.guard, round(watch.guard.window_s * SECOND_NS)
        over = now_ns >= watch.since_ns + window_ns
        if watch.noise <= 0:
            return _unjudged(watch, f"too few values of {guard.metric} before it")
        values = self._values(guard, watch.since_ns, now_ns)
        # A metric that stops being reported within the window counts as worse.
        enough = len(values) >= _FEWEST
        if over and self._is_silent(guard, now_ns - window_ns // (2 if enough else 1), now_ns):
            text = f"{guard.metric} was {watch.level:.4g} before it, and is no longer reported"
            return Judged(verdict=watch.verdict, hurt=True, text=text, before=watch.before)
        if not enough:
            return None
        after = statistics.median(values)
        times = (after - watch.level) / watch.noise
        if not over and times <= _CLEAR * guard.band:
            return None
        hurt = not times <= guard.band
        text = (
            f"{guard.metric} {watch.level:.4g} before it, {after:.4g} after: "
            f"{times:+.1f} times its noise of {watch.noise:.2g}, band {guard.band:g}"
        )
        if watch.upon:
            text += f"; rolled back with it, as still watched: {listed(watch.upon)}"
        return Judged(verdict=watch.verdict, hurt=hurt, text=text, before=watch.before)

    def _is_silent(self, guard: Guard, since_ns: int, now_ns: int) -> bool:
        """Return whether steps go on but the metric is not reported.

        A stalled or unreachable run reports nothing either, and does not count.
        """
        steps = sum(at > since_ns for at in self._steps_ns)
        return steps >= _FEWEST and not self._values(guard, since_ns, now_ns)

    def _guard_of(self, action: Action) -> Guard | None:
        own = action.guard if isinstance(action, ChangeKnobs) else None
        default = self._default
        if own is not None or not default.metric or not self._seen.get(default.metric):
            return own
        return Guard(metric=default.metric, band=default.band, window_s=default.window_s)

    def _level(self, guard: Guard, now_ns: int) -> tuple[float, float]:
        return _level(self._values(guard, now_ns - round(guard.window_s * SECOND_NS), now_ns))

    def _values(self, guard: Guard, from_ns: int, to_ns: int) -> list[float]:
        return [v for at, v in self._seen[guard.metric] if from_ns < at <= to_ns]


def _unjudged(watch: Watch, why: str) -> Judged:
    return Judged(verdict=watch.verdict, hurt=None, text=why, before=watch.before)


def _level(values: list[float]) -> tuple[float, float]:
    """Return the level at the end of a series, and its noise around a straight line.

    The noise is 0 if there are too few values.
    """
    series = np.asarray([value for value in values if abs(value) < _LARGEST])
    if len(series) < _FEWEST:
        return 0.0, 0.0
    at = np.arange(len(series), dtype=float)
    slope, start = np.polyfit(at, series, 1)
    left = series - (slope * at + start)
    level = float(np.median(series[-max(_FEWEST, len(series) // 3) :]))
    noise = 1.4826 * float(np.median(np.abs(left - np.median(left))))
    return level, max(noise, _LEAST_NOISE * abs(level), 1e-12)
