"""Find the replica group that hangs and blocks its quorum, and evict it."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from torchloom_core.plugin import (
    Alert,
    CollectDump,
    EvictGroup,
    FleetView,
    Floats,
    Need,
    Note,
    Positive,
    Proposal,
    Registry,
    Share,
    Standbys,
    grow,
    hookimpl,
)
from torchloom_policies.standstill import DUMP, NEEDS, Patience, Rows, Standstill

_WAITING, _QUORUM = "trainer_waiting_s", "quorum_id"


class HangPolicy:
    """Evict a group that makes no progress while others of its quorum wait for it.

    When one rank hangs, all ranks of its quorum stop, and their steps alone do not show the cause.
    The state of each trainer does: a victim waits in a collective or for a quorum
    (``trainer_waiting_s`` above 0); a culprit does not. A healthy trainer that evaluates, saves or
    compiles does not wait either. The time limit therefore depends on the evidence. It always
    includes ``costs.checkpoint_s``, and is at least ``ratio`` times the usual longest step:

    ========================================================== ==============================
    the process is stopped (SIGSTOP, a debugger)               ``stopped_s``
    no CPU time, and an unchanged stack                        ``least_s``
    it works: CPU time or the stack changes                    ``busy_s``
    CPU time or stack unknown (an older Threadlet)             ``unseen_s``
    in a named phase (``loom.phase``, torch.compile)           the bound of the phase, at least
    fewer than two steps finished: it compiles or heals        ``first_step_s``, at least
    ========================================================== ==============================

    A group is named as the culprit only if it exceeds its limit at ``patience`` ticks in a row,
    if another group of the same quorum waits, and if the number of named groups exceeds neither
    the number of waiting groups nor ``most_groups``. Stacks of the culprit and of one victim are
    collected first: an eviction frees the victims and loses them. The eviction is proposed once
    the dump has arrived, or after ``dump_s``; its reason states the evidence. The gain is the
    time that the victims would still wait, ``would_wait_s``. An alert is proposed if workers wait
    and no culprit can be named, and for each stopped process. ``status`` is the present time limit
    and how it was derived, for ``torchloom status`` and the page.
    """

    name = "hang"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.hang]``."""

        least_s: Positive = 120.0
        """How long a trainer may be idle (no CPU time, the same stack) in a step, seconds."""
        stopped_s: Positive = 30.0
        """How long its process may be stopped, if that is less than ``least_s``, seconds."""
        busy_s: Positive = 900.0
        """How long it may work at one step, seconds."""
        unseen_s: Positive = 300.0
        """How long a step may take if CPU time or stack is unknown, seconds."""
        ratio: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 3.0
        """Each limit is at least this many times the usual longest step, up to ``busy_s``."""
        memory_s: Positive = 21600.0
        """Half-life of a longest step's weight, seconds."""
        first_step_s: Positive = 900.0
        """How long a worker may take for its first two steps, seconds: it loads, compiles,
        heals."""
        patience: Annotated[int, msgspec.Meta(ge=1)] = 2
        """Ticks in a row at which the same worker must exceed its limit."""
        most_groups: Annotated[int, msgspec.Meta(ge=1)] = 4
        """If more groups than this hang, none is named: their shared infrastructure is at fault."""
        dump_s: Positive = 10.0
        """How long to wait for the dump of the hung worker before its eviction, seconds."""
        then: Literal["wait", "restart", "replace"] = "restart"
        """What follows the eviction: ``wait`` leaves the group to rejoin by itself, ``restart``
        ends its processes so that the launcher restarts them, ``replace`` gives its place to a
        standby, or restarts it if none fits."""
        would_wait_s: Positive = 300.0
        """How long the other groups would wait without the eviction, seconds: usually the process
        group's timeout."""
        confidence: Share = 0.9
        """Probability that the named group is the culprit, 0 to 1."""
        again_s: Positive = 300.0
        """A group that still hangs is proposed again after this time, seconds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._streak = np.zeros(0, dtype=np.int64)
        self._alerted = np.zeros(0, dtype=np.bool_)
        self._dumps: dict[str, tuple[float, Note | None]] = {}
        """When a group's dump was proposed, and its newest dump at that time."""
        self._evicted: set[str] = set()
        self._patience = Patience(options.ratio, options.busy_s, options.memory_s)
        self.status = ""
        self._unnamed = False
        self._named_s = -np.inf
        self.needs = (Need(_WAITING), Need(_QUORUM), *NEEDS)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Name the groups that block their quorum, and propose a dump or an eviction."""
        self._patience.look(view)
        seen = Standstill(view)
        least_s = self._options.least_s
        self.status = self._patience.in_words(least_s, view.costs.checkpoint_s)
        shortest_s = min(self._options.stopped_s, least_s)
        still = view.is_in("training") & self._exceed(view.progress_age_s, shortest_s, view)
        stopped = still & seen.stopped
        waits, others = self._split_by_wait(still & ~stopped, view)
        hangs = stopped | (others & ~seen.in_phase & self._too_long(seen, view))
        self._streak = np.where(still, grow(self._streak, len(view)) + 1, 0)
        ripe = self._streak >= self._options.patience
        yield from self._alert_stopped(stopped & ripe, still, view)
        standing = {view.group[row] for row in np.flatnonzero(still).tolist()}
        self._dumps = {group: dump for group, dump in self._dumps.items() if group in standing}
        self._evicted &= self._dumps.keys()
        if not (waits & ripe).any():
            self._unnamed = False
            return
        named = self._named(hangs & ripe, waits, view)
        if named:
            self._unnamed, self._named_s = False, view.now_s
            for group, (row, wait) in named.items():
                yield from self._act(group, row, wait, seen, view)
            return
        # Workers that an eviction has just freed have not finished a step yet.
        freed = view.now_s <= self._named_s + least_s
        explained = freed or (others & ~hangs).any() or view.is_in("paused", "joining").any()
        if not explained and not self._unnamed:
            self._unnamed = True
            yield self._cannot_name(waits, hangs, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Return that the group proposed for eviction makes progress again."""
        match proposal.action:
            case EvictGroup(group=group) if group not in self._dumps:
                return f"group {group} makes progress again"
        return ""

    def _exceed(self, elapsed_s: Floats, least_s: float, view: FleetView) -> Rows:
        """Return the rows over their limit for a step, or for their first steps."""
        limit_s = self._patience.limit_s(least_s) + view.costs.checkpoint_s
        first_s = max(limit_s, self._options.first_step_s)
        exceed: Rows = elapsed_s > np.where(self._patience.has_begun, limit_s, first_s)
        return exceed

    def _too_long(self, seen: Standstill, view: FleetView) -> Rows:
        """Return the rows over the limit that applies to their evidence."""
        options, age_s = self._options, view.progress_age_s
        idle = self._exceed(seen.idle_s, options.least_s, view)
        unseen = seen.unseen & self._exceed(age_s, options.unseen_s, view)
        return idle | unseen | self._exceed(age_s, options.busy_s, view)

    def _split_by_wait(self, still: Rows, view: FleetView) -> tuple[Rows, Rows]:
        """Return the rows that wait and those that do not, by telemetry or the lighthouse."""
        waiting_s = view.latest(_WAITING)
        waits, hangs = still & (waiting_s > 0), still & (waiting_s == 0)
        seen = view.lighthouse
        if seen is not None and seen.waiting_s > 0:
            unknown = still & np.isnan(waiting_s) & seen.member & ~seen.lost
            waits, hangs = waits | (unknown & ~seen.silent), hangs | (unknown & seen.silent)
        return waits, hangs

    def _quorum(self, view: FleetView) -> Floats:
        """Return ``(workers,)``: the quorum of each worker, NaN where unknown."""
        reported, seen = view.latest(_QUORUM), view.lighthouse
        if seen is None:
            return reported
        return np.where(np.isnan(reported) & seen.member, float(seen.quorum_id), reported)

    def _named(self, hangs: Rows, waits: Rows, view: FleetView) -> dict[str, tuple[int, "_Wait"]]:
        """Return the groups that hang, each by its row furthest behind, and the rows waiting."""
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

    def _act(
        self, group: str, row: int, wait: "_Wait", seen: Standstill, view: FleetView
    ) -> Iterator[Proposal]:
        """Propose dumps, then the eviction; start over after ``again_s`` if the group hangs."""
        asked_s, before = self._dumps.get(group, (-np.inf, None))
        waited_s, dump = view.now_s - asked_s, view.note(DUMP, row)
        if waited_s >= self._options.again_s:
            self._dumps[group] = view.now_s, dump
            self._evicted.discard(group)
            # A stopped process cannot dump; its sidecar has already reported its stack.
            targets = (row, wait.longest(but=group))
            yield from (self._dump(one, group, view) for one in targets[int(seen.stopped[row]) :])
        elif group not in self._evicted:
            evidence = seen.in_words(row)
            if not seen.stopped[row]:
                if dump == before and waited_s < self._options.dump_s:
                    return
                timed_out = f"its dump timed out after {waited_s:.0f} s"
                evidence += f", {timed_out if dump == before else 'its dump was taken'}"
            self._evicted.add(group)
            yield self._evict(group, row, wait, evidence, view)

    def _dump(self, row: int, group: str, view: FleetView) -> Proposal:
        return Proposal(
            action=CollectDump(worker=view.workers[row]),
            reason=f"the stacks of {view.workers[row]} may show where and why {group} hangs",
            gain_gpu_s=self._options.least_s * view.costs.gpus_per_worker,
            confidence=self._options.confidence,
        )

    def _evict(
        self, group: str, row: int, wait: "_Wait", evidence: str, view: FleetView
    ) -> Proposal:
        options = self._options
        victims, longest = wait.count(but=group), wait.longest(but=group)
        members = [other for other, name in enumerate(view.group) if name == group]
        then = options.then
        if then == "replace" and not Standbys(view).fit(members):
            then = "restart"
        gpus = view.costs.gpus_per_worker
        return Proposal(
            action=EvictGroup(group=group, then=then),
            reason=(
                f"{view.workers[row]} on {view.node[row] or 'an unknown node'} finished no step "
                f"after {view.step[row]} for {view.progress_age_s[row]:.0f} s: {evidence}; "
                f"{victims} workers of its quorum wait, {view.workers[longest]} for "
                f"{_waiting_s(view)[longest]:.0f} s"
            ),
            gain_gpu_s=victims * gpus * options.would_wait_s,
            cost_gpu_s=len(members) * gpus * (view.costs.restart_s + view.costs.unsaved_s),
            confidence=options.confidence,
        )

    def _alert_stopped(self, stopped: Rows, still: Rows, view: FleetView) -> Iterator[Proposal]:
        alerted = grow(self._alerted, len(view)) & still
        self._alerted = alerted | stopped
        for row in np.flatnonzero(stopped & ~alerted).tolist():
            text = (
                f"{view.workers[row]} on {view.node[row] or 'an unknown node'}: its process is "
                f"stopped, by SIGSTOP or a debugger, after step {view.step[row]}"
            )
            yield Proposal(action=Alert(worker=view.workers[row], text=text), reason=text)

    def _cannot_name(self, waits: Rows, hangs: Rows, view: FleetView) -> Proposal:
        row = int(np.flatnonzero(waits)[np.argmin(view.step[waits])])
        text = (
            f"{waits.sum()} workers wait and finish no step, {view.workers[row]} for "
            f"{_waiting_s(view)[row]:.0f} s; the cause is unknown, "
            f"{hangs.sum()} other workers compute or are stopped"
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
        """Return how many rows of other groups wait."""
        return self._rows - len(self.groups.get(but, ()))

    def longest(self, but: str) -> int:
        """Return the row of another group that has waited longest."""
        rows = (row for group, rows in self.groups.items() if group != but for row in rows)
        return max(rows, key=lambda row: float(self._waiting_s[row]))


def _waiting_s(view: FleetView) -> Floats:
    """Return how long each waits, or, where not reported, the time since its last step."""
    reported_s = view.latest(_WAITING)
    return np.where(np.isnan(reported_s), view.progress_age_s, reported_s)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(HangPolicy)
