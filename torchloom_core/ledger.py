"""Every command's life, from issued to its end; the kernel's operations keep it."""

from collections.abc import Iterable

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.decisions import CommandLife, Issue, Output
from torchloom_core.messages import FINAL_STATUSES, Ack, AckStatus, Command, Deed, SetKnob
from torchloom_core.plans import Flight

_GRACE_NS = 5 * SECOND_NS
"""A worker judges the deadline by its own clock, and its ack takes a moment."""

_ORDER = {"issued": 0, "delivered": 1, "accepted": 2}


class Ledger:
    """The commands in flight under one fencing epoch."""

    def __init__(self, run: str, deadline_s: float) -> None:
        self._run = run
        self._deadline_ns = round(deadline_s * SECOND_NS)
        self._issued = 0
        self.epoch = 0
        self.flights: dict[str, Flight] = {}

    def issue(
        self, worker: str, incarnation: int, deed: Deed, cause: str, now_ns: int
    ) -> tuple[str, list[Output]]:
        """Enter a new command; return its id and what to give out."""
        self._issued += 1
        command = Command(
            id=f"c{self.epoch}.{self._issued}",
            run=self._run,
            worker=worker,
            incarnation=incarnation,
            epoch=self.epoch,
            issued_ns=now_ns,
            deadline_ns=now_ns + self._deadline_ns,
            do=deed,
            cause=cause,
        )
        self.flights[command.id] = Flight(command=command, status="issued")
        return command.id, [_life(command, "issued"), Issue(command=command)]

    def recover(self, epoch: int, flights: Iterable[Flight]) -> list[Output]:
        """Take over what an earlier epoch left in flight and send it again under this one."""
        self.epoch = epoch
        outputs: list[Output] = []
        for flight in flights:
            command = msgspec.structs.replace(flight.command, epoch=epoch)
            self.flights[command.id] = Flight(command=command, status=flight.status)
            outputs.append(Issue(command=command))
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
        return [_life(command, ack.status, ack.detail, ack.step)]

    def settle(
        self, command_id: str, status: AckStatus, detail: str, step: int = -1
    ) -> list[Output]:
        """End a command's life."""
        flight = self.flights.pop(command_id)
        return [_life(flight.command, status, detail, step)]

    def overdue(self, now_ns: int) -> list[str]:
        """Return the commands whose deadline is well past and of which nothing was heard."""
        return [
            command_id
            for command_id, flight in self.flights.items()
            if now_ns > flight.command.deadline_ns + _GRACE_NS
        ]

    def knobs_in_flight(self) -> set[tuple[str, str]]:
        """Return worker and knob of every knob that is on its way."""
        return {
            (flight.command.worker, flight.command.do.knob)
            for flight in self.flights.values()
            if isinstance(flight.command.do, SetKnob)
        }

    def of_other_lives(self, worker: str, incarnation: int | None) -> list[str]:
        """Return the worker's commands that were meant for another life than this one."""
        return [
            command_id
            for command_id, flight in self.flights.items()
            if flight.command.worker == worker and flight.command.incarnation != incarnation
        ]


def _life(command: Command, status: str, detail: str = "", step: int = -1) -> CommandLife:
    return CommandLife(
        command=command.id,
        worker=command.worker,
        status=status,  # type: ignore[arg-type]
        verb=str(command.do.__struct_config__.tag),
        cause=command.cause,
        step=step,
        detail=detail,
    )
