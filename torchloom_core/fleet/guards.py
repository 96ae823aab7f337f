"""Watch over what was changed, whether the run got worse by it, beside its own noise.

Of each metric that may be watched the median over the workers that train is kept, one value a
tick. What it was before a change is measured when the change lands; when its window is over, or
as soon as there can be no doubt, the values since are held against it. What was measured before a
run began anew is held against nothing that comes after.
"""

import statistics
from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.config import schema
from torchloom_core.fleet.furthest_steps import FurthestSteps
from torchloom_core.fleet.state import FleetState
from torchloom_core.persistent_table import PersistentTable
from torchloom_core.suggest import listed
from torchloom_core.wire.actions import Action, ChangeKnobs, Guard
from torchloom_core.wire.events import Judged
from torchloom_core.wire.messages import KnobValues
from torchloom_core.wire.plans import Plan, Watch

_KEPT = 4096
_FEWEST = 5
"""Values, before and after, on which a judgement rests."""
_JITTER_NS = SECOND_NS // 4
"""By how much what is heard of one and the same step may differ."""
_NO_DOUBT = 3.0
"""So many times beyond its band, a change is judged before its window is over."""
_FORGETS = 0.99
"""How much of the share of workers that report a metric is usual a tick later."""
_LARGEST = 1e100
"""What is larger is no measurement, and its square no number."""
_AGAIN_NS = 10 * SECOND_NS
TRIES = 5
"""How often it is tried to take back what hurt, the second time so much later, each further one
after twice as long."""
_LEAST_NOISE = 1e-3
"""Of the level: below that a difference is not worth a rollback, however quiet the run is."""


class Guards:
    """What is watched in a run, and over which changes.

    Attributes
    ----------
    watches : PersistentTable of Watch
        By the verdict whose change is, or is about to be, watched over.
    """

    def __init__(self, fleet: FleetState, config: schema.Guard) -> None:
        self._fleet = fleet
        self._default = config
        self._seen: dict[str, deque[tuple[int, float]]] = {
            metric: deque(maxlen=_KEPT) for metric in config.metrics
        }
        self._share: dict[str, float] = {}
        self._steps_ns: deque[int] = deque(maxlen=_KEPT)
        self._progress_ns = 0
        self._furthest = FurthestSteps()
        self.watches: PersistentTable[Watch] = PersistentTable("watch")

    def obstacle(self, guard: Guard | None) -> str:
        """Return why there is nothing that the guard could watch, or nothing."""
        if guard is None:
            return ""
        seen = self._seen.get(guard.metric)
        if seen is None:
            known = ", ".join(self._seen)
            return f"guard: need a metric of guard.metrics ({known}), was {guard.metric!r}"
        if not seen:
            return f"guard: no worker that trains reports {guard.metric}, so nothing can be watched"
        return ""

    def look(self, now_ns: int) -> list[Judged]:
        """Take one value of each metric: its median over the workers that train.

        Return the changes that are watched over no more, since the run began anew.
        """
        if not self._seen:
            return []
        rows = [row for row, state in enumerate(self._fleet.state) if state == "training"]
        if not rows:
            return []
        was_at = self._furthest.most
        went_back = self._furthest.went_back(*self._fleet.steps_heard(rows, now_ns))
        ended = self._begin_anew(was_at) if went_back else []
        progress_ns = self._fleet.progress_ns(rows)
        if progress_ns > self._progress_ns + _JITTER_NS:
            self._progress_ns = progress_ns
            self._steps_ns.append(now_ns)
        for metric, seen in self._seen.items():
            values = self._fleet.last_column(metric)[rows]
            values = values[~np.isnan(values)]
            # Of a few the median would not say that the others' is no number any more.
            share, usual = len(values) / len(rows), self._share.get(metric, 0.0)
            self._share[metric] = max(share, usual * _FORGETS)
            if len(values) and share >= usual / 2:
                seen.append((now_ns, float(np.median(values))))
        return ended

    def newest(self, metric: str) -> float | None:
        """Return the newest median of a metric that may be watched, None where there is none."""
        seen = self._seen.get(metric)
        return seen[-1][1] if seen else None

    def _begin_anew(self, was_at: int) -> list[Judged]:
        """Drop what was measured so far, and end the watches that rest on it."""
        self._steps_ns.clear()
        for seen in self._seen.values():
            seen.clear()
        text = f"not watched over: the run went back from step {was_at} to {self._furthest.most}"
        ended = []
        for watch in [watch for watch in self.watches.values() if not watch.hurt]:
            if watch.since_ns:
                del self.watches[watch.verdict]
                ended.append(_unjudged(watch, text))
            else:
                offered = msgspec.structs.replace(watch, level=0.0, noise=0.0)
                self.watches[watch.verdict] = offered
        return ended

    def expect(self, plan: Plan, before: KnobValues, now_ns: int) -> None:
        """Remember what the knobs and the metric are before a change that is to be offered.

        Measured now: a Weaver that hears of its landing may have begun after it.
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

    def begin(self, verdict: str, now_ns: int) -> None:
        """Watch over a change that has landed, and over an earlier one that still is watched.

        What was before the earlier one is what both are held against, and what both go back to.
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
        """Return, to go on with, how the change that has just landed is watched over."""
        watch = self.watches.get(verdict)
        if watch is None:
            return ""
        guard = watch.guard
        if not watch.noise:
            return f"; not watched over, too little was seen of {guard.metric} before"
        return f"; {guard.metric} is watched for {guard.window_s:g} s"

    def forget(self, verdict: str) -> None:
        """Watch no more over a change that was not made."""
        self.watches.pop(verdict, None)

    def judge(self, now_ns: int) -> list[Judged]:
        """Judge the changes whose window is over, or of which there is no doubt."""
        watched = [w for w in self.watches.values() if w.since_ns and not w.hurt]
        judged = [j for watch in watched if (j := self._judge(watch, now_ns))]
        for judgement in judged:
            watch = self.watches.pop(judgement.verdict)
            if judgement.hurt:
                self.watches[watch.verdict] = msgspec.structs.replace(watch, hurt=judgement.text)
        return judged

    def to_take_back(self, now_ns: int) -> list[Watch]:
        """Return what hurt and is to be taken back now: again a while after it was denied."""
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
        """Note that what hurt has been taken back."""
        for watch in [watch for watch in self.watches.values() if watch.hurt]:
            if watch.before == values:
                del self.watches[watch.verdict]

    def restore(self, watches: Iterable[Watch], now_ns: int) -> None:
        """Take over what an earlier Weaver watched, of the metrics that still may be.

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
            return _unjudged(watch, f"too little was seen of {guard.metric} before it")
        values = self._values(guard, watch.since_ns, now_ns)
        # What was reported often enough to be judged, and then no more, has not become harmless.
        enough = len(values) >= _FEWEST
        if over and self._is_silent(guard, now_ns - window_ns // (2 if enough else 1), now_ns):
            text = f"{guard.metric} was {watch.level:.4g} before it, and is reported no more"
            return Judged(verdict=watch.verdict, hurt=True, text=text, before=watch.before)
        if not enough:
            return None
        after = statistics.median(values)
        times = (after - watch.level) / watch.noise
        if not over and times <= _NO_DOUBT * guard.band:
            return None
        hurt = not times <= guard.band
        text = (
            f"{guard.metric} {watch.level:.4g} before it, {after:.4g} after: "
            f"{times:+.1f} times its noise of {watch.noise:.2g}, band {guard.band:g}"
        )
        if watch.upon:
            text += f"; with it, as still watched: {listed(watch.upon)}"
        return Judged(verdict=watch.verdict, hurt=hurt, text=text, before=watch.before)

    def _is_silent(self, guard: Guard, since_ns: int, now_ns: int) -> bool:
        """Say whether steps go on and nothing is reported of them.

        A run that stands still, or is not heard, reports nothing either.
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
    """Return where a series ends, and its noise: what is left of it beside a straight line.

    A noise of 0 says that there is too little to tell.
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
