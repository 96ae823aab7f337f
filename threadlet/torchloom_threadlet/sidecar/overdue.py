"""StandbyTasks from which a standby does not come back in time: it hangs, its sidecar does not."""

import time
from typing import get_args

from torchloom_core.wire.messages import FINAL_STATUSES, Ack, Command, StandbyTask


class Overdue:
    """Knows how long each standby task may take that the trainer was told to do."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def begin(self, command: Command) -> None:
        """Take a command that the trainer is handed, of any kind."""
        if isinstance(command.do, get_args(StandbyTask)):
            allowed_s = (command.deadline_ns - command.issued_ns) / 1e9
            self._until_s.setdefault(command.id, time.monotonic() + allowed_s)

    def end(self, ack: Ack) -> None:
        """Take the trainer's word on a command."""
        if ack.status in FINAL_STATUSES:
            self._until_s.pop(ack.command, None)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return any(until_s < time.monotonic() for until_s in self._until_s.values())
