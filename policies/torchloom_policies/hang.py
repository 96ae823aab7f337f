"""Find the replica group that the others wait for in vain, and have them freed of it."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

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
from torchloom_policies.patience import FAILED_STEPS, STEP_TIME, Patience
from torchloom_policies.standstill import DUMP, NEEDS, Rows, Standstill

_WAITING, _QUORUM = "trainer_waiting_s", "quorum_id"


class HangPolicy:
    """Evict a group that makes no progress while others of its quorum wait for it.

    When one rank hangs, all that it trains with stand still, and from their steps alone nobody
    can tell who holds up whom. What each trainer is at tells it: a victim waits in a collective
    or for a quorum (``trainer_waiting_s`` above 0); a culprit does not. But a trainer that
    evaluates, saves or compiles does not wait either, and is well. So each is given the time that
    the evidence asks for, always plus ``costs.checkpoint_s``, and never less than ``ratio`` times
    the usual longest step of this run:

    ========================================================== ==============================
    its process is stopped (SIGSTOP, a debugger)               ``stopped_s``
    it uses no CPU time, and its stack stays the same          ``least_s`` of that
    it works: CPU time moves, or the stack does                ``busy_s``
    neither is known, as of an older Threadlet                 ``unseen_s``
    it is in a named phase (``loom.phase``, torch.compile)     the bound of the phase, at least
    it has not finished two steps yet: it compiles or heals    ``first_step_s``, at least
    ========================================================== ==============================

    A culprit is named only if it stands still at ``patience`` ticks in a row, if another group of
    the very same quorum waits, and if neither more groups are named than wait nor more than
    ``most_groups``. Then its stacks and those of one that waits for it are collected, which they
    can only be before the others are freed. Once its own have come, or after ``dump_s``, it is
    proposed for eviction, and the reason states the evidence. The gain is what those that wait
    would go on waiting, ``would_wait_s``. If somebody waits and nobody can be named, there is an
    alert; so is there for a process that is stopped.

    Attributes
    ----------
    status : str
        The present patience and what it comes of, for ``torchloom status`` and the page.
    """

    name = "hang"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.hang]``.

        Attributes
        ----------
        least_s : float
            How long a trainer may be idle (no CPU time, the same stack) in a step, seconds.
        stopped_s : float
            How long its process may be stopped, if that is less than ``least_s``, seconds.
        busy_s : float
            How long it may work at one step, seconds.
        unseen_s : float
            How long a step may take of which neither CPU time nor stack is known, seconds.
        ratio : float
            All of that is at least so many times the usual longest step, up to ``busy_s``.
        memory_s : float
            After this time a longest step counts for half, seconds.
        first_step_s : float
            How long a worker may take for its first two steps, seconds: it loads, compiles, heals.
        patience : int
            Ticks in a row at which the same worker must stand still.
        most_groups : int
            Of more groups than that none is named: what they share is at fault.
        dump_s : float
            How long the dump of the one that hangs is waited for before its eviction, seconds.
        then : str
            What becomes of the group: ``wait`` leaves it to come back by itself, ``restart`` ends
            it for whoever started it to start it again, ``replace`` gives its place to a standby
            and restarts it where none fits.
        would_wait_s : float
            How long the others would go on waiting if left alone, seconds: the process group's
            timeout, as a rule.
        confidence : float
            Probability that the group named is the one, 0 to 1.
        again_s : float
            When a group that still hangs is proposed again, seconds.
        """

        least_s: Positive = 120.0
        stopped_s: Positive = 30.0
        busy_s: Positive = 900.0
        unseen_s: Positive = 300.0
        ratio: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 3.0
        memory_s: Positive = 21600.0
        first_step_s: Positive = 900.0
        patience: Annotated[int, msgspec.Meta(ge=1)] = 2
        most_groups: Annotated[int, msgspec.Meta(ge=1)] = 4
        dump_s: Positive = 10.0
        then: Literal["wait", "restart", "replace"] = "restart"
        would_wait_s: Positive = 300.0
        confidence: Share = 0.9
        again_s: Positive = 300.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._streak = np.zeros(0, dtype=np.int64)
        self._told = np.zeros(0, dtype=np.bool_)
        self._asked: dict[str, _Asked] = {}
        self._evicted: set[str] = set()
        self._patience = Patience(options.ratio, options.busy_s, options.memory_s)
        self.status = ""
        self._unnamed = False
        self._named_s = -np.inf
        self.needs = (
            Need(STEP_TIME),
            Need(FAILED_STEPS, optional=True),
            Need(_WAITING),
            Need(_QUORUM),
            *NEEDS,
        )

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Name who holds the others up, and say what to do about it."""
        self._patience.look(view)
        seen = Standstill(view)
        least_s = self._options.least_s
        self.status = self._patience.in_words(least_s, view.costs.checkpoint_s)
        shortest_s = min(self._options.stopped_s, least_s)
        still = view.is_in("training") & self._exceed(view.progress_age_s, shortest_s, view)
        stopped = still & seen.stopped
        waits, others = self._at_what(still & ~stopped, view)
        hangs = stopped | (others & ~seen.in_phase & self._too_long(seen, view))
        self._streak = np.where(still, grow(self._streak, len(view)) + 1, 0)
        ripe = self._streak >= self._options.patience
        yield from self._alert_stopped(stopped & ripe, still, view)
        standing = {view.group[row] for row in np.flatnonzero(still).tolist()}
        self._asked = {group: asked for group, asked in self._asked.items() if group in standing}
        if not (waits & ripe).any():
            self._unnamed = False
            return
        named = self._named(hangs & ripe, waits, view)
        if named:
            self._unnamed, self._named_s = False, view.now_s
            for group, (row, wait) in named.items():
                yield from self._act(group, row, wait, seen, view)
        elif (others & ~hangs).any() or self._is_plain(view):
            return
        elif not self._unnamed:
            self._unnamed = True
            yield self._cannot_name(waits, hangs, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Say that the group that was to be evicted does not stand still any more."""
        match proposal.action:
            case EvictGroup(group=group) if group not in self._asked:
                return f"group {group} does not stand still any more"
        return ""

    def _exceed(self, spent_s: Floats, least_s: float, view: FleetView) -> Rows:
        """Return who has spent more than the patience with a step, or with its first ones."""
        limit_s = self._patience.limit_s(least_s) + view.costs.checkpoint_s
        first_s = max(limit_s, self._options.first_step_s)
        exceed: Rows = spent_s > np.where(self._patience.has_begun, limit_s, first_s)
        return exceed

    def _too_long(self, seen: Standstill, view: FleetView) -> Rows:
        """Return who takes longer than may be, by what is known of it."""
        options, age_s = self._options, view.progress_age_s
        idle = self._exceed(seen.idle_s, options.least_s, view)
        unseen = seen.unseen & self._exceed(age_s, options.unseen_s, view)
        return idle | unseen | self._exceed(age_s, options.busy_s, view)

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

    def _act(
        self, group: str, row: int, wait: "_Wait", seen: Standstill, view: FleetView
    ) -> Iterator[Proposal]:
        """Look at first, then evict; if that did nothing, again after a while."""
        asked = self._asked.get(group)
        dump = view.note(DUMP, row)
        if asked is None or view.now_s - asked.at_s >= self._options.again_s:
            self._asked[group] = _Asked(view.now_s, dump)
            self._evicted.discard(group)
            # A stopped process answers nothing; what can be had of it its sidecar has told.
            whom = (row, wait.longest(but=group))
            yield from (self._dump(one, group, view) for one in whom[int(seen.stopped[row]) :])
        elif group not in self._evicted:
            said = seen.in_words(row)
            if not seen.stopped[row]:
                waited_s = view.now_s - asked.at_s
                if dump == asked.dump and waited_s < self._options.dump_s:
                    return
                timed_out = f"its dump timed out after {waited_s:.0f} s"
                said += f", {timed_out if dump == asked.dump else 'its dump was taken'}"
            self._evicted.add(group)
            yield self._evict(group, row, wait, said, view)

    def _dump(self, row: int, group: str, view: FleetView) -> Proposal:
        return Proposal(
            action=CollectDump(worker=view.workers[row]),
            reason=f"{view.workers[row]} may show why {group} hangs, and where",
            gain_gpu_s=self._options.least_s * view.costs.gpus_per_worker,
            confidence=self._options.confidence,
        )

    def _evict(self, group: str, row: int, wait: "_Wait", said: str, view: FleetView) -> Proposal:
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
                f"after {view.step[row]} for {view.progress_age_s[row]:.0f} s: {said}; "
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


class _Asked(NamedTuple):
    """When a dump was asked for, and the newest that had come by then."""

    at_s: float
    dump: Note | None


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
