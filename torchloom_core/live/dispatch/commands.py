"""The commands in flight, from issue to final status."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.live.dispatch.deadlines import Deadlines
from torchloom_core.wire.commands import FINAL_STATUSES, Ack, AckStatus, Command
from torchloom_core.wire.decisions import CommandStatus, Issue, Output, Withdrawal
from torchloom_core.wire.events import Backlog
from torchloom_core.wire.links import PROBE_DEADLINE_S
from torchloom_core.wire.operations import Operation, Probe, Rehearse, SetKnob, StandbyTask, Survey
from torchloom_core.wire.plans import WITHDRAWN, Flight

_GRACE_NS = 5 * SECOND_NS
"""For the worker's own clock and the delay of its ack; also after the Weaver was unreachable."""

_PROBE_NS = round(PROBE_DEADLINE_S * SECOND_NS)

_CHANGES_AN_EPOCH = 1 << 20

_ORDER = {WITHDRAWN: 0, "issued": 0, "delivered": 1, "accepted": 2}


class Commands:
    """The commands in flight under one fencing epoch."""

    def __init__(self, run: str, deadline_s: float) -> None:
        self._run = run
        self._deadline_ns = round(deadline_s * SECOND_NS)
        self._issued = 0
        self._changes = 0
        self._of_worker: dict[str, dict[str, None]] = {}
        self._with: dict[type[Operation], dict[str, int]] = {}
        self._deadlines = Deadlines()
        self.epoch = 0
        self.report_time = ReportTime()
        self.flights: PersistentTable[Flight] = PersistentTable("flight")

    def next_change(self) -> int:
        """Return the number of a new change, larger than all earlier ones of any epoch."""
        self._changes += 1
        return self.epoch * _CHANGES_AN_EPOCH + self._changes

    def issue(
        self, worker: str, incarnation: int, operation: Operation, cause: str, now_ns: int
    ) -> list[Output]:
        """Add a new command; return its status and the command to send."""
        self._issued += 1
        command = Command(
            id=f"c{self.epoch}.{self._issued}",
            run=self._run,
            worker=worker,
            incarnation=incarnation,
            epoch=self.epoch,
            issued_ns=now_ns,
            deadline_ns=now_ns + self._within_ns(operation),
            do=operation,
            cause=cause,
        )
        self._enter(Flight(command=command, status="issued"))
        return [_status_of(command, "issued"), Issue(command=command)]

    def _within_ns(self, operation: Operation) -> int:
        match operation:
            case Probe():
                return min(_PROBE_NS, self._deadline_ns)
            case Survey(seconds=seconds) | Rehearse(seconds=seconds):
                return self._deadline_ns + round(seconds * SECOND_NS)
        return self._deadline_ns + round(operation.takes_s * SECOND_NS)

    def recover(self, epoch: int, flights: Iterable[Flight], now_ns: int) -> list[Output]:
        """Take over the commands in flight of an earlier epoch, and send them again.

        Withdrawals come first, as they delete all copies of earlier epochs; the earlier Weaver may
        have died before it sent them. Times by a clock that was ahead are shifted.
        """
        self.epoch = epoch
        withdrawals: list[Output] = []
        issues: list[Output] = []
        for flight in flights:
            ahead_ns = max(0, flight.command.issued_ns - now_ns)
            command = msgspec.structs.replace(
                flight.command,
                epoch=epoch,
                issued_ns=flight.command.issued_ns - ahead_ns,
                deadline_ns=flight.command.deadline_ns - ahead_ns,
            )
            self._enter(Flight(command=command, status=flight.status))
            if flight.status == WITHDRAWN:
                withdrawals.append(Withdrawal(command=command.id, worker=command.worker))
            else:
                issues.append(Issue(command=command))
        return withdrawals + issues

    def withdraw_undelivered(self, command_ids: Iterable[str]) -> list[Output]:
        """Withdraw those without an ack; they stay in flight until a late ack or the deadline."""
        outputs: list[Output] = []
        for command_id in command_ids:
            flight = self.flights[command_id]
            if flight.status == "issued":
                command = flight.command
                self.flights[command.id] = Flight(command=command, status=WITHDRAWN)
                outputs.append(Withdrawal(command=command.id, worker=command.worker))
        return outputs

    def acknowledge(self, ack: Ack) -> list[Output]:
        """Apply an ack; late, repeated and outdated acks are ignored."""
        flight = self.flights.get(ack.command)
        if flight is None:
            return []
        command = flight.command
        if (ack.worker, ack.incarnation) != (command.worker, command.incarnation):
            return []
        if ack.status == "rejected" and ack.epoch < command.epoch:
            return []  # a copy of an earlier epoch was rejected; the present one is in flight
        if ack.status in FINAL_STATUSES:
            return self.settle(ack.command, ack.status, ack.detail, ack.step)
        if _ORDER[ack.status] <= _ORDER[flight.status]:
            return []
        self.flights[ack.command] = Flight(command=command, status=ack.status)
        return [_status_of(command, ack.status, ack.detail, ack.step)]

    def settle(
        self, command_id: str, status: AckStatus, detail: str, step: int = -1
    ) -> list[Output]:
        """Remove a command that has its final status."""
        command = self.flights.pop(command_id).command
        self._deadlines.drop(command_id)
        workers = self._with[type(command.do)]
        workers[command.worker] -= 1
        if not workers[command.worker]:
            del workers[command.worker]
        of_worker = self._of_worker[command.worker]
        del of_worker[command_id]
        if not of_worker:
            del self._of_worker[command.worker]
        return [_status_of(command, status, detail, step)]

    @staticmethod
    def never_sent(command: Command, why: str) -> Output:
        """Return the final status of a command that an earlier Weaver never sent."""
        return _status_of(command, "expired", why)

    def overdue(self, now_ns: int) -> list[str]:
        """Return the commands that are well past their deadline."""
        is_past, flights = self.report_time.is_past, self.flights
        return [
            command_id
            for command_id in self._deadlines.before(now_ns - _GRACE_NS)
            if is_past(flights[command_id].command.deadline_ns + _GRACE_NS, now_ns)
        ]

    def is_due(self, now_ns: int) -> bool:
        """Return whether any command is well past its deadline, if all reports were read."""
        return bool(self._deadlines.before(now_ns - _GRACE_NS))

    def knobs_in_flight(self, worker: str) -> set[str]:
        """Return the knobs that commands in flight set on the worker."""
        return {knob for knob, _ in self._knob_commands(worker)}

    def setting(self, workers: Iterable[str], knob: str) -> list[Command]:
        """Return the commands in flight that set the knob on one of the workers."""
        return [
            command
            for worker in workers
            for name, command in self._knob_commands(worker)
            if name == knob
        ]

    def _knob_commands(self, worker: str) -> list[tuple[str, Command]]:
        return [
            (flight.command.do.knob, flight.command)
            for flight in self._flights_of(worker)
            if isinstance(flight.command.do, SetKnob) and flight.status != WITHDRAWN
        ]

    def workers_with(self, *operations: type[Operation]) -> set[str]:
        """Return the workers with one of the operations in flight, even if it was withdrawn."""
        found = (own for do, own in self._with.items() if issubclass(do, operations))
        return {worker for own in found for worker in own}

    def of_other_incarnations(self, worker: str, incarnation: int | None) -> list[str]:
        """Return the worker's commands for any other incarnation than this one."""
        return [
            flight.command.id
            for flight in self._flights_of(worker)
            if flight.command.incarnation != incarnation
        ]

    def _flights_of(self, worker: str) -> list[Flight]:
        return [self.flights[command_id] for command_id in self._of_worker.get(worker, ())]

    def _enter(self, flight: Flight) -> None:
        command = flight.command
        self.flights[command.id] = flight
        self._of_worker.setdefault(command.worker, {})[command.id] = None
        self._deadlines.add(command.id, command.deadline_ns)
        workers = self._with.setdefault(type(command.do), {})
        workers[command.worker] = workers.get(command.worker, 0) + 1


def _status_of(command: Command, status: str, detail: str = "", step: int = -1) -> CommandStatus:
    return CommandStatus(
        command=command.id,
        worker=command.worker,
        incarnation=command.incarnation if isinstance(command.do, StandbyTask) else UNSET,
        status=status,  # type: ignore[arg-type]
        verb=str(command.do.__struct_config__.tag),
        cause=command.cause,
        step=step,
        detail=detail,
    )


class ReportTime:
    """The time against which deadlines are checked."""

    def __init__(self) -> None:
        self._taken_until_ns: int | None = None
        self._caught_up_ns = 0

    def take(self, backlog: Backlog, now_ns: int) -> None:
        """Record that the Weaver lags behind, or has caught up."""
        self._taken_until_ns = backlog.taken_until_ns
        if backlog.taken_until_ns is None:
            self._caught_up_ns = now_ns + _GRACE_NS

    def lags(self, now_ns: int) -> bool:
        """Return whether reports may be unread."""
        return self._taken_until_ns is not None or now_ns <= self._caught_up_ns

    def is_past(self, moment_ns: int, now_ns: int) -> bool:
        """Return whether all reports until ``moment_ns`` were read."""
        until_ns = self._taken_until_ns
        judged_ns = now_ns if until_ns is None else min(now_ns, until_ns)
        return judged_ns > max(moment_ns, self._caught_up_ns)
