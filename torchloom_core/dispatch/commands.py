"""Every command's life, from issued to its end; the kernel keeps it."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from torchloom_core.clock import SECOND_NS
from torchloom_core.dispatch.report_time import ReportTime
from torchloom_core.persistent_table import PersistentTable
from torchloom_core.wire.events import CommandStatus, Issue, Output, Withdrawal
from torchloom_core.wire.links import PROBE_DEADLINE_S
from torchloom_core.wire.messages import (
    FINAL_STATUSES,
    Ack,
    AckStatus,
    Command,
    Operation,
    Probe,
    Rehearse,
    SetKnob,
    StandbyTask,
    Survey,
)
from torchloom_core.wire.plans import WITHDRAWN, Flight

_GRACE_NS = 5 * SECOND_NS
"""A worker judges the deadline by its own clock, and its ack takes a moment."""

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
        self.epoch = 0
        self.report_time = ReportTime()
        self.flights: PersistentTable[Flight] = PersistentTable("flight")

    def next_change(self) -> int:
        """Return the number of a new change, larger than that of any before, of any epoch."""
        self._changes += 1
        return self.epoch * _CHANGES_AN_EPOCH + self._changes

    def issue(
        self, worker: str, incarnation: int, operation: Operation, cause: str, now_ns: int
    ) -> list[Output]:
        """Enter a new command; return what to give out."""
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
        return self._deadline_ns

    def recover(self, epoch: int, flights: Iterable[Flight], now_ns: int) -> list[Output]:
        """Take over what an earlier epoch left in flight and send it again under this one.

        What was taken back stays so: the earlier Weaver may have died before it could say it.
        That is said first, since it takes all copies of an earlier epoch off file. What was issued
        by a clock that was ahead has as long from now on as it would have had.
        """
        self.epoch = epoch
        recalls: list[Output] = []
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
                recalls.append(Withdrawal(command=command.id, worker=command.worker))
            else:
                issues.append(Issue(command=command))
        return recalls + issues

    def withdraw_undelivered(self, command_ids: Iterable[str]) -> list[Output]:
        """Take back those commands of which no worker has been heard.

        They stay in flight: one that has reached its worker after all is told by its ack, and
        the others end at their deadline.
        """
        outputs: list[Output] = []
        for command_id in command_ids:
            flight = self.flights[command_id]
            if flight.status == "issued":
                command = flight.command
                self.flights[command.id] = Flight(command=command, status=WITHDRAWN)
                outputs.append(Withdrawal(command=command.id, worker=command.worker))
        return outputs

    def acknowledge(self, ack: Ack) -> list[Output]:
        """Take an ack; late, repeated and outdated ones change nothing."""
        flight = self.flights.get(ack.command)
        if flight is None:
            return []
        command = flight.command
        if (ack.worker, ack.incarnation) != (command.worker, command.incarnation):
            return []
        if ack.status == "rejected" and ack.epoch < command.epoch:
            return []  # the copy of an earlier epoch was fenced off; ours is on its way
        if ack.status in FINAL_STATUSES:
            return self.settle(ack.command, ack.status, ack.detail, ack.step)
        if _ORDER[ack.status] <= _ORDER[flight.status]:
            return []
        self.flights[ack.command] = Flight(command=command, status=ack.status)
        return [_status_of(command, ack.status, ack.detail, ack.step)]

    def settle(
        self, command_id: str, status: AckStatus, detail: str, step: int = -1
    ) -> list[Output]:
        """End a command's life."""
        command = self.flights.pop(command_id).command
        of_worker = self._of_worker[command.worker]
        del of_worker[command_id]
        if not of_worker:
            del self._of_worker[command.worker]
        return [_status_of(command, status, detail, step)]

    @staticmethod
    def never_sent(command: Command, why: str) -> Output:
        """Return the end of a command that an earlier Weaver issued and never sent."""
        return _status_of(command, "expired", why)

    def overdue(self, now_ns: int) -> list[str]:
        """Return the commands whose deadline is well past and of which nothing was heard."""
        is_past = self.report_time.is_past
        return [
            command_id
            for command_id, flight in self.flights.items()
            if is_past(flight.command.deadline_ns + _GRACE_NS, now_ns)
        ]

    def is_due(self, now_ns: int) -> bool:
        """Say whether the deadline of any is well past, if all reports are taken in."""
        flights = self.flights.values()
        return any(now_ns > flight.command.deadline_ns + _GRACE_NS for flight in flights)

    def knobs_in_flight(self, worker: str) -> set[str]:
        """Return the knobs that the worker is being told."""
        return {knob for knob, _ in self._knob_commands(worker)}

    def setting(self, workers: Iterable[str], knob: str) -> list[Command]:
        """Return the commands under way that tell one of the workers a value of the knob."""
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
        """Return the workers that are told one, or may have been before it was taken back."""
        commands = (flight.command for flight in self.flights.values())
        return {command.worker for command in commands if isinstance(command.do, operations)}

    def of_other_incarnations(self, worker: str, incarnation: int | None) -> list[str]:
        """Return the worker's commands that were meant for another life than this one."""
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
