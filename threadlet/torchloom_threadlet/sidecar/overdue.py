"""Overdue standby tasks: the standby hangs in one, but its sidecar does not."""

import time
from typing import get_args

from torchloom_core.wire.commands import FINAL_STATUSES, Ack, Command
from torchloom_core.wire.operations import StandbyTask


class Overdue:
    """Tracks how long each standby task of the trainer may take."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def begin(self, command: Command) -> None:
        """Take a command of any kind that the trainer gets."""
        if isinstance(command.do, get_args(StandbyTask)):
            allowed_s = (command.deadline_ns - command.issued_ns) / 1e9
            self._until_s.setdefault(command.id, time.monotonic() + allowed_s)

    def end(self, ack: Ack) -> None:
        """Take the trainer's ack of a command."""
        if ack.status in FINAL_STATUSES:
            self._until_s.pop(ack.command, None)

    def __bool__(self) -> bool:
        """Whether a task is overdue."""
        return any(until_s < time.monotonic() for until_s in self._until_s.values())
