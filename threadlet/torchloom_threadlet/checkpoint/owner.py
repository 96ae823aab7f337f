"""Which trainer's checkpoints are saved at a place, and whether it still runs."""

import os
import socket
from typing import NamedTuple, Self


class Owner(NamedTuple):
    """A trainer, as the lock of a place names it: ``pid 4711 on node-3``."""

    pid: int
    host: str

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this trainer."""
        return cls(os.getpid(), socket.gethostname())

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the trainer that a lock names; None if it names none."""
        match text.split(" "):
            case ["pid", pid, "on", host] if pid.isdecimal():
                return cls(int(pid), host)
        return None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: only on its own host."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
