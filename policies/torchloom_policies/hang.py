"""Find the replica group that the others wait for in vain, and have them freed of it."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import (
    Alert,
    CollectDump,
    EvictGroup,
    FleetView,
    Floats,
    Need,
    Positive,
    Proposal,
    Registry,
    Share,
    Standbys,
    grow,
    hookimpl,
)

Rows = NDArray[np.bool_]

_STEP, _WAITING, _STOPPED, _QUORUM = (
    "step_time_s",
    "trainer_waiting_s",
    "trainer_stopped",
    "quorum_id",
)


class HangPolicy:
    """Evict a group that makes no progress while others of its quorum wait for it.

    When one rank hangs, all that it trains with stand still, and from their steps alone nobody
    can tell who holds up whom. What each trainer is at tells it: a victim waits in a collective
    or for a quorum (``trainer_waiting_s`` above 0); the culprit computes, or its process is
    stopped (``trainer_stopped``). Whoever finished no step for

        max(least_s, ratio x the usual longest step) + costs.checkpoint_s

    stands still; the usual longest step is the median over the workers of each one's longest
    within ``memory_s``, so checkpoints that were saved lately are in it. A worker that has not
    finished two steps yet, because it compiles or heals, has ``first_step_s``.

    A culprit is named only if it stands still at ``patience`` ticks in a row, if another group of
    the very same quorum waits, and if neither more groups are named than wait nor more than
    ``most_groups``. Then its stacks and those of one that waits for it are collected, which they
    can only be before the others are freed; at the next tick it is proposed for eviction. The
    gain is what those that wait would go on waiting, ``would_wait_s``. If somebody waits and
    nobody can be named, there is an alert; so is there for a process that is stopped.
    """

    name = "hang"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.hang]``.

        Attributes
        ----------
        least_s : float
            Nobody stands still who finished a step within this time, seconds.
        ratio : float
            Nor within this many times the usual longest step.
        memory_s : float
            How long a step is remembered for that, seconds.
        first_step_s : float
            How long a worker may take for its first two steps, seconds: it loads, compiles, heals.
        patience : int
            Ticks in a row at which the same worker must stand still.
        most_groups : int
            Of more groups than that none is named: what they share is at fault.
        then : str
            What becomes of the group: ``wait`` leaves it to come back by itself, ``restart`` ends
            it for whoever started it to start it again, ``replace`` gives its place to a stand-by
            and restarts it where none fits.
        would_wait_s : float
            How long the others would go on waiting if left alone, seconds: the process group's
            timeout, as a rule.
        confidence : float
            Probability that the group named is the one, 0 to 1.
        again_s : float
            When a group that still hangs is proposed again, seconds.
        """

        least_s: Positive = 30.0
        ratio: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 3.0
        memory_s: Positive = 300.0
        first_step_s: Positive = 900.0
        patience: Annotated[int, msgspec.Meta(ge=1)] = 2
        most_groups: Annotated[int, msgspec.Meta(ge=1)] = 4
        then: Literal["wait", "restart", "replace"] = "restart"
        would_wait_s: Positive = 300.0
        confidence: Share = 0.9
        again_s: Positive = 300.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._streak = np.zeros(0, dtype=np.int64)
        self._told = np.zeros(0, dtype=np.bool_)
        self._asked_s: dict[str, float] = {}
        self._evicted: set[str] = set()
        self._began = np.zeros(0, dtype=np.bool_)
        self._usual_s = 0.0
        self._unnamed = False
        self._named_s = -np.inf
        self.needs = (
            Need(_STEP, window_s=options.memory_s),
            Need(_WAITING),
            Need(_STOPPED),
            Need(_QUORUM),
        )

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Name who holds the others up, and say what to do about it."""
        still = view.is_in("training") & (view.progress_age_s > self._limits_s(view))
        stopped = still & (view.latest(_STOPPED) >= 1)
        waits, hangs = self._at_what(still & ~stopped, view)
        hangs |= stopped
        self._streak = np.where(still, grow(self._streak, len(view)) + 1, 0)
        ripe = self._streak >= self._options.patience
        yield from self._alert_stopped(stopped & ripe, still, view)
        standing = {view.group[row] for row in np.flatnonzero(still).tolist()}
        self._asked_s = {group: at for group, at in self._asked_s.items() if group in standing}
        if not (waits & ripe).any():
            self._unnamed = False
            return
        named = self._named(hangs & ripe, waits, view)
        if named:
            self._unnamed, self._named_s = False, view.now_s
            for group, (row, wait) in named.items():
                yield from self._act(group, row, wait, view)
        elif self._is_plain(view):
            return
        elif not self._unnamed:
            self._unnamed = True
            yield self._cannot_name(waits, hangs, view)

    def _limits_s(self, view: FleetView) -> Floats:
        """Return ``(workers,)``: how long each may take for a step, seconds."""
        options = self._options
        past_s = view.window(_STEP, options.memory_s)
        longest_s = np.where(np.isfinite(past_s), past_s, 0.0).max(axis=1, initial=0.0)
        if (longest_s > 0).any():
            self._usual_s = float(np.median(longest_s[longest_s > 0]))
        # Who stands still for longer than that has no step in memory, and is not at its first.
        began = grow(self._began, len(view)) & view.is_in("training")
        self._began = began | (longest_s > 0)
        limit_s = max(options.least_s, options.ratio * self._usual_s) + view.costs.checkpoint_s
        return np.where(self._began, limit_s, max(limit_s, options.first_step_s))

    def _is_plain(self, view: FleetView) -> bool:
        """Say whether it is plain why somebody waits: for a paused group, or for one that joins.

        Whoever was freed just now has not finished a step yet, and waits for nobody.
        """
        freed = view.now_s <= self._named_s + self._options.least_s
        return freed or bool(view.is_in("paused", "joining").any())

    def _at_what(self, still: Rows, view: FleetView) -> tuple[Rows, Rows]:
        """Return who waits and who does not, as they say themselves, or as the lighthouse sees."""
        waiting_s = view.latest(_WAITING)
        waits, hangs = still & (waiting_s > 0), still & (waiting_s == 0)
        seen = view.lighthouse
        if seen is not None and seen.waiting_s > 0:
            unsaid = still & np.isnan(waiting_s) & seen.member & ~seen.lost
            waits, hangs = waits | (unsaid & ~seen.silent), hangs | (unsaid & seen.silent)
        return waits, hangs

    def _quorum(self, view: FleetView) -> Floats:
        """Return ``(workers,)``: the quorum that each is in, NaN where nobody knows."""
        said, seen = view.latest(_QUORUM), view.lighthouse
        if seen is None:
            return said
        return np.where(np.isnan(said) & seen.member, float(seen.quorum_id), said)

    def _named(self, hangs: Rows, waits: Rows, view: FleetView) -> dict[str, tuple[int, "_Wait"]]:
        """Return the groups that hang, each by its row furthest behind, with who waits for it."""
        quorum = self._quorum(view)
        waiting: dict[float, _Wait] = {}
        for row in np.flatnonzero(waits).tolist():
            waiting.setdefault(float(quorum[row]), _Wait(_waiting_s(view))).add(
                row, view.group[row]
            )
        named: dict[str, tuple[int, _Wait]] = {}
        for row in np.flatnonzero(hangs).tolist():
            group = view.group[row]
            wait = waiting.get(float(quorum[row]))
            behind = group not in named or view.step[row] < view.step[named[group][0]]
            if behind and wait is not None and wait.count(but=group):
                named[group] = row, wait
        held_up = {group for _, wait in named.values() for group in wait.groups}
        most = min(self._options.most_groups, len(held_up - named.keys()))
        return named if len(named) <= most else {}

    def _act(self, group: str, row: int, wait: "_Wait", view: FleetView) -> Iterator[Proposal]:
        """Look at first, then evict; if that did nothing, again after a while."""
        if view.now_s - self._asked_s.get(group, -np.inf) >= self._options.again_s:
            self._asked_s[group] = view.now_s
            self._evicted.discard(group)
            # A stopped process answers nothing; what can be had of it its sidecar has told.
            stopped = bool(view.latest(_STOPPED)[row] >= 1)
            asked = (row, wait.longest(but=group))
            yield from (self._dump(one, group, view) for one in asked[stopped:])
        elif group not in self._evicted:
            self._evicted.add(group)
            yield self._evict(group, row, wait, view)

    def _dump(self, row: int, group: str, view: FleetView) -> Proposal:
        return Proposal(
            action=CollectDump(worker=view.workers[row]),
            reason=f"{view.workers[row]} may show why {group} hangs, and where",
            gain_gpu_s=self._options.least_s * view.costs.gpus_per_worker,
            confidence=self._options.confidence,
        )

    def _evict(self, group: str, row: int, wait: "_Wait", view: FleetView) -> Proposal:
        options = self._options
        victims, longest = wait.count(but=group), wait.longest(but=group)
        members = [other for other, name in enumerate(view.group) if name == group]
        then = options.then
        if then == "replace" and not Standbys(view).fit(members):
            then = "restart"
        does = "is stopped" if view.latest(_STOPPED)[row] >= 1 else "computes"
        gpus = view.costs.gpus_per_worker
        return Proposal(
            action=EvictGroup(group=group, then=then),
            reason=(
                f"{view.workers[row]} on {view.node[row] or 'an unknown node'} {does} and finished "
                f"no step after {view.step[row]} for {view.progress_age_s[row]:.0f} s; "
                f"{victims} workers of its quorum wait, {view.workers[longest]} for "
                f"{_waiting_s(view)[longest]:.0f} s"
            ),
            gain_gpu_s=victims * gpus * options.would_wait_s,
            cost_gpu_s=len(members) * gpus * (view.costs.restart_s + view.costs.unsaved_s),
            confidence=options.confidence,
        )

    def _alert_stopped(self, stopped: Rows, still: Rows, view: FleetView) -> Iterator[Proposal]:
        told = grow(self._told, len(view)) & still
        self._told = told | stopped
        for row in np.flatnonzero(stopped & ~told).tolist():
            text = (
                f"{view.workers[row]} on {view.node[row] or 'an unknown node'}: its process is "
                f"stopped, by SIGSTOP or a debugger, after step {view.step[row]}"
            )
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)

    def _cannot_name(self, waits: Rows, hangs: Rows, view: FleetView) -> Proposal:
        row = int(np.flatnonzero(waits)[np.argmin(view.step[waits])])
        text = (
            f"{waits.sum()} workers wait and finish no step, {view.workers[row]} for "
            f"{_waiting_s(view)[row]:.0f} s; nobody can be named that they wait for, "
            f"{hangs.sum()} others compute or are stopped"
        )
        return Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)


class _Wait:
    """The rows that wait in one quorum."""

    def __init__(self, waiting_s: Floats) -> None:
        self.groups: dict[str, list[int]] = {}
        self._waiting_s = waiting_s
        self._rows = 0

    def add(self, row: int, group: str) -> None:
        self.groups.setdefault(group, []).append(row)
        self._rows += 1

    def count(self, but: str) -> int:
        """Return how many wait that are not of this group."""
        return self._rows - len(self.groups.get(but, ()))

    def longest(self, but: str) -> int:
        """Return who of them has waited longest."""
        rows = (row for group, rows in self.groups.items() if group != but for row in rows)
        return max(rows, key=lambda row: float(self._waiting_s[row]))


def _waiting_s(view: FleetView) -> Floats:
    """Return how long each waits, or, where it does not say, for how long it finished no step."""
    said_s = view.latest(_WAITING)
    return np.where(np.isnan(said_s), view.progress_age_s, said_s)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(HangPolicy)
