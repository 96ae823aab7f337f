"""Compare a metric before and after a change, to roll back a change that made the run worse.

Each guard metric has one value per tick and role: the median over its training workers. Its level
and noise before a change are measured when the change is applied, and compared with the values
since when its window ends, or as soon as the result is clear. Values from before a run started
over are not compared with later ones.
"""

import statistics
from collections.abc import Iterable

import msgspec

from torchloom_core.config import schema
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.floor.suggest import listed
from torchloom_core.live.fleet.guard_metrics import FEWEST, GuardMetrics
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.actions import Action, ChangeKnobs, Guard
from torchloom_core.wire.decisions import Judged
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.plans import Plan, Watch

_CLEAR = 3.0
"""A change is judged before its window ends if the metric is this multiple of the band off."""
_AGAIN_NS = 10 * SECOND_NS
TRIES = 5
"""Attempts of a rollback; the second one comes after ``_AGAIN_NS``, each further one after twice
as long."""


class Guards:
    """The guard metrics of a run's roles, and the changes that they watch.

    Attributes
    ----------
    watches : PersistentTable of Watch
        By the verdict whose change is, or will be, watched.
    """

    def __init__(self, fleet: FleetState, config: schema.Guard) -> None:
        self._fleet = fleet
        self._default = config
        self._of: dict[str, GuardMetrics] = {}
        self.watches: PersistentTable[Watch] = PersistentTable("watch")

    def obstacle(self, guard: Guard | None, role: str = TRAINER) -> str:
        """Return why the guard cannot watch its metric in a role, or ""."""
        if guard is None:
            return ""
        if guard.metric not in self._default.metrics:
            metrics = ", ".join(self._default.metrics)
            return f"guard: need a metric of guard.metrics ({metrics}), was {guard.metric!r}"
        if not self._metrics(role).is_seen(guard.metric):
            return f"guard: no training worker reports {guard.metric}"
        return ""

    def look(self, now_ns: int) -> list[Judged]:
        """Add one value of each metric a role: its median over the role's training workers.

        Return the watches that end because the run started over.
        """
        if not self._default.metrics:
            return []
        fleet = self._fleet
        rows_of: dict[str, list[int]] = {}
        for row, state in enumerate(fleet.state):
            if state == "training":
                rows_of.setdefault(fleet.hello[row].role, []).append(row)
        ended: list[Judged] = []
        for role, rows in rows_of.items():
            if how := self._metrics(role).look(fleet, rows, now_ns):
                ended += self._begin_anew(role, how)
        return ended

    def newest(self, metric: str, role: str = TRAINER) -> float | None:
        """Return the newest median of a guard metric in a role, or None."""
        return self._metrics(role).newest(metric)

    def _metrics(self, role: str) -> GuardMetrics:
        if role not in self._of:
            self._of[role] = GuardMetrics(self._default.metrics)
        return self._of[role]

    def _begin_anew(self, role: str, how: str) -> list[Judged]:
        """End the watches that depend on a role's measurements, which were dropped."""
        text = f"not watched: the run went back {how}"
        ended = []
        for watch in [w for w in self.watches.values() if w.role == role and not w.hurt]:
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

    def expect(self, plan: Plan, before: KnobValues, now_ns: int, role: str = TRAINER) -> None:
        """Store the knobs and the metric before a change is offered.

        The Weaver that learns that it was applied may have started after it.
        """
        metrics = self._metrics(role)
        guard = self._guard_of(plan.action, metrics)
        if guard is None or not before:
            return
        level, noise = metrics.level(guard, now_ns)
        self.watches[plan.verdict] = Watch(
            verdict=plan.verdict,
            guard=guard,
            before=before,
            level=level,
            noise=noise,
            step=metrics.furthest.most,
            role=role,
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
        level, noise = watch.level, watch.noise
        if not noise:
            level, noise = self._metrics(watch.role).level(guard, now_ns)
        for earlier in [w for w in self.watches.values() if w.since_ns and not w.hurt]:
            if (earlier.role, earlier.guard.metric) == (watch.role, guard.metric):
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

    def taken_back(self, values: KnobValues, role: str = TRAINER) -> None:
        """Drop the watches of a role whose change has been rolled back."""
        for watch in [watch for watch in self.watches.values() if watch.hurt]:
            if watch.before == values and watch.role == role:
                del self.watches[watch.verdict]

    def restore(self, watches: Iterable[Watch], now_ns: int) -> None:
        """Restore the watches of an earlier Weaver, if their metrics are still guard metrics.

        Its clock may have been ahead.
        """
        for watch in watches:
            furthest = self._metrics(watch.role).furthest
            furthest.most = max(furthest.most, watch.step)
            if watch.guard.metric in self._default.metrics:
                since_ns, tried_ns = min(watch.since_ns, now_ns), min(watch.tried_ns, now_ns)
                self.watches[watch.verdict] = msgspec.structs.replace(
                    watch, since_ns=since_ns, tried_ns=tried_ns
                )

    def _judge(self, watch: Watch, now_ns: int) -> Judged | None:
        guard, window_ns = watch.guard, round(watch.guard.window_s * SECOND_NS)
        metrics = self._metrics(watch.role)
        over = now_ns >= watch.since_ns + window_ns
        if watch.noise <= 0:
            return _unjudged(watch, f"too few values of {guard.metric} before it")
        values = metrics.values(guard, watch.since_ns, now_ns)
        # A metric that stops being reported within the window counts as worse.
        enough = len(values) >= FEWEST
        if over and metrics.is_silent(guard, now_ns - window_ns // (2 if enough else 1), now_ns):
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

    def _guard_of(self, action: Action, metrics: GuardMetrics) -> Guard | None:
        own = action.guard if isinstance(action, ChangeKnobs) else None
        default = self._default
        if own is not None or not default.metric or not metrics.is_seen(default.metric):
            return own
        return Guard(metric=default.metric, band=default.band, window_s=default.window_s)


def _unjudged(watch: Watch, why: str) -> Judged:
    return Judged(verdict=watch.verdict, hurt=None, text=why, before=watch.before)
