"""Decide what becomes of each command that arrives, so that none is carried out twice. Pure.

The link's thread calls :meth:`CommandInbox.receive`, the training thread
:meth:`CommandInbox.begin` and :meth:`CommandInbox.settle`; the caller holds a lock around them, and
passes why the command cannot be carried out now, "" if it can. The inbox lives in the trainer, so
it survives every sidecar, broker and Weaver.
"""

import time

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.commands import Ack, AckStatus, Command
from torchloom_core.wire.limits import MAX_TEXT, Count, Id, KnobValues, Name
from torchloom_core.wire.links import Measured
from torchloom_threadlet.cleaning import text

_MOST_ENDED = 4096


class CommandInbox:
    """The commands of one incarnation of one worker, and how they ended."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._highest_epoch = 0
        self._pending: dict[str, Command] = {}
        self._ended: dict[str, tuple[Ack, int]] = {}

    def receive(
        self, command: Command, now_ns: int, step: int = -1, refusal: str = ""
    ) -> tuple[Ack, bool]:
        """Answer one copy of a command, and return whether to carry it out.

        A command that ended gets its final ack again, and a pending one ``accepted``: a restarted
        Weaver sends it again under its own epoch, and either copy may come first.
        """
        if command.incarnation != self._incarnation:
            detail = f"need incarnation {self._incarnation}, was {command.incarnation}"
            return ack_of(command, "rejected", now_ns, step, detail), False
        stale = command.epoch < self._highest_epoch
        self._highest_epoch = max(self._highest_epoch, command.epoch)
        if command.id in self._ended:
            ended, _ = self._ended[command.id]
            return msgspec.structs.replace(ended, epoch=command.epoch, ts_ns=now_ns), False
        if command.id in self._pending:
            if not stale:
                self._pending[command.id] = command
            return ack_of(command, "accepted", now_ns, step), False
        if stale:
            # Not stored: the same command may still come under the present epoch.
            detail = f"stale epoch {command.epoch}, the Weaver is at {self._highest_epoch}"
            return ack_of(command, "rejected", now_ns, step, detail), False
        if now_ns > command.deadline_ns:
            late_s = (now_ns - command.deadline_ns) / SECOND_NS
            detail = f"it arrived {late_s:.1f} s after its deadline, by this host's clock"
            return self._end(command, "expired", now_ns, step, detail), False
        if refusal:
            return self._end(command, "rejected", now_ns, step, refusal), False
        self._pending[command.id] = command
        return ack_of(command, "accepted", now_ns, step), True

    @property
    def highest_epoch(self) -> int:
        """The highest epoch received, 0 before the first."""
        return self._highest_epoch

    def accepts(self, epoch: int) -> bool:
        """Return whether a message under ``epoch`` counts, and remember the highest."""
        self._highest_epoch = max(self._highest_epoch, epoch)
        return epoch == self._highest_epoch

    def begin(self, command_id: str, now_ns: int, step: int = -1, refusal: str = "") -> Ack | None:
        """Return None if the command may be carried out now, or the ack that refuses it."""
        command = self._pending[command_id]
        if now_ns > command.deadline_ns:
            return self.settle(command_id, "expired", now_ns, step)
        return self.settle(command_id, "rejected", now_ns, step, refusal) if refusal else None

    def settle(
        self,
        command_id: str,
        status: AckStatus,
        now_ns: int,
        step: int = -1,
        detail: str = "",
        measured: Measured | None = None,
        before: KnobValues | None = None,
    ) -> Ack:
        """Record how a command ended and return the ack, for the copy that came last."""
        command = self._pending.pop(command_id)
        return self._end(command, status, now_ns, step, detail, measured, before)

    def _end(
        self,
        command: Command,
        status: AckStatus,
        now_ns: int,
        step: int,
        detail: str = "",
        measured: Measured | None = None,
        before: KnobValues | None = None,
    ) -> Ack:
        ack = ack_of(command, status, now_ns, step, detail, measured)
        ack = msgspec.structs.replace(ack, before=before or None)
        if len(self._ended) >= _MOST_ENDED:
            self._forget(now_ns)
        self._ended[command.id] = (ack, command.deadline_ns)
        return ack

    def _forget(self, now_ns: int) -> None:
        """Drop commands past their deadline: a later copy is answered ``expired``."""
        self._ended = {
            command_id: (ack, deadline_ns)
            for command_id, (ack, deadline_ns) in self._ended.items()
            if deadline_ns >= now_ns
        }


class _Addressed(msgspec.Struct, tag="command"):
    """A command without its operation."""

    id: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count


_json = msgspec.json.Decoder(_Addressed)
_msgpack = msgspec.msgpack.Decoder(_Addressed)


def rejection(data: bytes, why: str) -> Ack | None:
    """Return the ack for a command, in JSON or msgpack, whose operation cannot be read here.

    None if it is no command at all.
    """
    decode = _json.decode if data[:1] == b"{" else _msgpack.decode
    try:
        return ack_of(decode(data), "rejected", time.time_ns(), detail=why)
    except UNREADABLE:
        return None


def ack_of(
    command: Command | _Addressed,
    status: AckStatus,
    now_ns: int,
    step: int = -1,
    detail: str = "",
    measured: Measured | None = None,
) -> Ack:
    """Return the ack of a command."""
    return Ack(
        command=command.id,
        run=command.run,
        worker=command.worker,
        incarnation=command.incarnation,
        epoch=command.epoch,
        status=status,
        step=step,
        detail=text(detail, MAX_TEXT),
        measured=measured,
        ts_ns=now_ns,
    )
