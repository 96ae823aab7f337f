"""Put recoveries together from a run's messages, as they are received or recorded.

A recovery begins when a worker that had trained ends by a fault, by SIGTERM, or without a report,
and is over at the first committed step of its group, or of the group in its place. All times are by
the Weaver's clock: a worker's own stamps are moved by the least difference between receipt and
stamp of all of its messages, so that only the fastest message's latency remains of a skewed clock.
"""

from collections.abc import Iterator

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.recovering_workers import OpenRecovery, Process
from torchloom_core.live.trajectory.recovery_phases import (
    ADVICE,
    DECIDE,
    DETECT,
    FAILED_STARTS,
    RELAUNCH,
    Recovery,
    divided,
)
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.endings import in_a_word, in_words
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.start_phases import JOIN, PHASES, start_in

MOST = 200
"""Recoveries that are stored; the oldest are dropped."""

_OPENS = frozenset({"killed", "failed", "gone", "terminated"})
_TERMINATED = "terminated"
_ISSUED = "issued"
_SILENT_NS = 5 * SECOND_NS
"""A worker that was not heard for so long is lost, where a standby joins."""

_JOINS, _TERMINATES = "join", "terminate"


class Recoveries:
    """The recoveries of a run, from everything that its workers and its Weaver have sent.

    ``version`` changes with whatever may change one of them.
    """

    def __init__(self) -> None:
        self.version = 0
        self._now_ns = 0
        self._present: dict[str, Process] = {}
        self._of_group: dict[str, OpenRecovery] = {}
        self._all: list[OpenRecovery] = []

    def take(self, message: object, ts_ns: int) -> None:
        """Take a message of a worker, or a command's status, received at ``ts_ns``."""
        self._now_ns = max(self._now_ns, ts_ns)
        match message:
            case Telemetry():
                self._progress(message, ts_ns)
                return
            case Hello():
                self._hello(message, ts_ns)
            case Exit():
                self._exit(message, ts_ns)
            case Note():
                self._note(message, ts_ns)
            case CommandStatus(status=status) if status == _ISSUED:
                self._command(message, ts_ns)
            case _:
                return
        self.version += 1

    def found(self, as_of_ns: int | None = None) -> Iterator[Recovery]:
        """Yield the recoveries, the oldest first; one that is not over lasts until ``as_of_ns``.

        Without a time they last until the newest message.
        """
        for one in self._all:
            if one.is_certain or one.starts:
                yield self._recovery(one, max(self._now_ns, as_of_ns or 0))

    # --- messages ---

    def _hello(self, hello: Hello, ts_ns: int) -> None:
        process = self._present.get(hello.worker)
        if process is not None and process.hello.incarnation == hello.incarnation:
            process.hello = hello
        else:
            if process is not None and hello.incarnation < process.hello.incarnation:
                return
            if process is not None and process.ended_ns is None:
                self._end(process, process.last_ns, None, "ended without a report", certain=True)
            process = self._present[hello.worker] = Process(hello, ts_ns, ts_ns)
        process.stamped(hello.ts_ns, ts_ns)
        process.last_ns = max(process.last_ns, ts_ns)

    def _exit(self, message: Exit, ts_ns: int) -> None:
        process = self._of(message.worker, message.incarnation)
        if process is None or process.is_reported:
            return
        process.is_reported = True
        process.stamped(message.ts_ns, ts_ns)
        word = in_a_word(message.status, expected=message.expected, error=message.error)
        how = in_words(
            message.status, expected=message.expected, step=message.step, error=message.error
        )
        process.step = max(process.step, message.step)
        if word not in _OPENS:
            process.ended_ns = ts_ns
            self._all = [one for one in self._all if one.first is not process]
            return
        at_ns, known_ns = process.at_ns(message.ts_ns), ts_ns
        if process.terminated_ns is not None:  # it hung: it was lost with its last progress
            at_ns, known_ns = process.progress_ns, process.terminated_ns
        self._end(process, at_ns, known_ns, how, certain=word != _TERMINATED)

    def _note(self, note: Note, ts_ns: int) -> None:
        process = self._of(note.worker, note.incarnation)
        if process is None:
            return
        process.stamped(note.ts_ns, ts_ns)
        process.last_ns = max(process.last_ns, ts_ns)
        found = start_in(note)
        if found is None:
            return
        latest_ns = ts_ns - (process.skew_ns or 0)  # no start begins after it was heard of
        process.start = msgspec.structs.replace(found, began_ns=min(found.began_ns, latest_ns))
        process.has_trained |= not found.phase
        self._assign(process)

    def _command(self, status: CommandStatus, ts_ns: int) -> None:
        process = self._present.get(status.worker)
        if process is None or process.ended_ns is not None:
            return
        if status.verb == _JOINS:
            process.joined_ns = ts_ns
        elif status.verb == _TERMINATES:
            process.terminated_ns = ts_ns

    def _progress(self, batch: Telemetry, ts_ns: int) -> None:
        process = self._of(batch.worker, batch.incarnation)
        if process is None:
            return
        process.last_ns, process.step = ts_ns, max(process.step, batch.step)
        process.progress_ns = ts_ns - round(batch.progress_age_s * SECOND_NS)
        process.has_trained |= batch.state == "training" and batch.step >= 0
        newest_ns = process.steps.take(batch)
        if newest_ns is not None:
            process.stamped(newest_ns, ts_ns)

    def _of(self, worker: str, incarnation: int) -> Process | None:
        """Return this incarnation, if it is the present one or was lost in a recovery."""
        process = self._present.get(worker)
        if process is not None and process.hello.incarnation == incarnation:
            return process
        recovery = self._of_group.get(process.hello.group) if process is not None else None
        lost = recovery.lost.get(worker) if recovery is not None else None
        return lost if lost is not None and lost.hello.incarnation == incarnation else None

    # --- recoveries ---

    def _end(
        self, process: Process, at_ns: int, known_ns: int | None, how: str, *, certain: bool
    ) -> None:
        """Record that a process has ended by itself, or been ended."""
        had_ended, process.ended_ns = process.ended_ns is not None, at_ns
        hello = process.hello
        recovery = self._of_group.get(hello.group)
        if recovery is not None and recovery.starts.get(hello.worker) is process:
            if not recovery.is_over:
                recovery.starts.clear()
                recovery.failed, recovery.failed_ns = recovery.failed + 1, at_ns
                return
        elif recovery is not None and (not recovery.is_over or had_ended):
            self._add_loss(recovery, process, at_ns, known_ns, how, certain=certain)
            return
        if process.has_trained and not had_ended:
            recovery = self._of_group[hello.group] = OpenRecovery(
                group=hello.group,
                role=hello.role,
                lost={hello.worker: process},
                first=process,
                lost_ns=at_ns,
                known_ns=known_ns,
                cause=f"{hello.worker} {how}",
                is_certain=certain,
                others=[
                    other
                    for other in self._present.values()
                    if other.has_trained
                    and other.hello.role == hello.role
                    and other.hello.group != hello.group
                ],
            )
            self._all = [*self._all[1 - MOST :], recovery]
            for other in self._present.values():  # a standby may have joined before
                if other.start is not None and other.start.joined:
                    self._assign(other)

    def _add_loss(
        self,
        recovery: OpenRecovery,
        process: Process,
        at_ns: int,
        known_ns: int | None,
        how: str,
        *,
        certain: bool,
    ) -> None:
        """Add a further rank of the group; the earliest is what began the recovery."""
        worker = process.hello.worker
        is_first = at_ns < recovery.lost_ns or recovery.first is process
        if process.has_trained and (is_first if certain == recovery.is_certain else certain):
            recovery.first, recovery.cause = process, f"{worker} {how}"
            recovery.is_certain = certain
        recovery.lost[worker] = process
        if process.has_trained and is_first:
            recovery.lost_ns, recovery.known_ns = at_ns, known_ns

    def _assign(self, process: Process) -> None:
        """Count a start for the recovery of its group, or of a group that it replaces."""
        hello = process.hello
        assert process.start is not None
        began_ns = process.at_ns(process.start.began_ns)
        recovery = self._of_group.get(hello.group)
        if recovery is None:
            recovery = self._replaced(process, began_ns)
            if recovery is not None:
                self._of_group[hello.group] = recovery
        if recovery is None or recovery.lost.get(hello.worker) is process:
            return
        if began_ns < recovery.failed_ns:  # a rank of a start that has failed
            return
        if not recovery.is_over or began_ns <= self._end_ns(recovery):
            recovery.starts[hello.worker] = process

    def _replaced(self, process: Process, began_ns: int) -> OpenRecovery | None:
        """Return the recovery of a group in whose place this one trains, if any."""
        role = process.hello.role
        for _ in range(2):
            for one in self._all:
                fits = one.is_certain and not one.starts and one.role == role
                if fits and one.lost_ns < began_ns:
                    return one
            if process.start is not None and process.start.joined:
                self._end_silent(role, began_ns - _SILENT_NS)
        return None

    def _end_silent(self, role: str, before_ns: int) -> None:
        """Count workers as lost that were not heard since ``before_ns``, as their node is lost."""
        for process in list(self._present.values()):
            is_silent = process.ended_ns is None and process.last_ns < before_ns
            if is_silent and process.has_trained and process.hello.role == role:
                self._end(process, process.last_ns, None, "ended without a report", certain=True)

    def _end_ns(self, recovery: OpenRecovery) -> int:
        ranks = [start for one in recovery.starts.values() if (start := one.rank_start())]
        return max(rank.boundaries_ns(0)[-1] for rank in ranks if not rank.phase)

    # --- the result ---

    def _recovery(self, one: OpenRecovery, as_of_ns: int) -> Recovery:
        ranks = [start for process in one.starts.values() if (start := process.rank_start())]
        began_ns = max((rank.began_ns for rank in ranks), default=as_of_ns)
        phases, end_ns = divided(
            one.lost_ns, list(self._milestones(one, began_ns)), ranks, as_of_ns
        )
        longest = max(phases, key=lambda name: phases[name], default="")
        behind = min(
            (rank.phase for rank in ranks if rank.phase in PHASES),
            key=PHASES.index,
            default=RELAUNCH,
        )
        return Recovery(
            group=one.group,
            cause=one.cause,
            node=one.first.hello.node,
            step=one.first.step,
            lost_ns=one.lost_ns,
            ended_ns=end_ns if one.is_over else None,
            phases=phases,
            phase="" if one.is_over else behind,
            total_s=(end_ns - one.lost_ns) / SECOND_NS,
            longest=longest,
            advice=ADVICE.get(longest, ""),
            failed_starts=one.failed,
            by=next((process.hello.group for process in one.starts.values()), ""),
            nodes=tuple(sorted({process.hello.node for process in one.starts.values()})),
            stood_still_s=self._stood_still_s(one, end_ns),
        )

    def _milestones(self, one: OpenRecovery, began_ns: int) -> Iterator[tuple[str, int]]:
        """Yield the phases before the ranks' starts, and their ends."""
        known_ns = one.known_ns
        if known_ns is not None:
            yield DETECT, min(known_ns, began_ns)
        joins = [
            process.joined_ns for process in one.starts.values() if process.joined_ns is not None
        ]
        if joins:
            yield DECIDE, min(max(joins), began_ns)
        if one.failed:
            yield FAILED_STARTS, min(one.failed_ns, began_ns)
        yield (JOIN if joins else RELAUNCH), began_ns

    def _stood_still_s(self, one: OpenRecovery, end_ns: int) -> float | None:
        """Return the most that a worker of the other groups stood still meanwhile."""
        stood_s = (
            other.steps.still_s(one.lost_ns, end_ns, other.skew_ns or 0)
            for other in one.others
            if other.ended_ns is None or other.ended_ns > end_ns
        )
        return max(stood_s, default=None)
