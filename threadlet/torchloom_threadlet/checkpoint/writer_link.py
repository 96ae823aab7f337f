"""The trainer's end of its writer: orders go out, reports come in, nothing is waited for."""

import logging
import select
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_threadlet.checkpoint.writer.orders import (
    Begin,
    Cancel,
    Limit,
    Order,
    Report,
)
from torchloom_threadlet.trainer.sidecar_start import exit_reason, start_beside

_MODULE = "torchloom_threadlet.checkpoint.writer"
_SEND_S = 1.0

_logger = logging.getLogger(__name__)


class WriterLink:
    """A writer of this process for one file of slots.

    Raises OSError if the system cannot start a process.
    """

    def __init__(self, interpreter: str, slots: Path) -> None:
        self._process, self._link = start_beside(interpreter, _MODULE, (str(slots),))
        self._link.settimeout(_SEND_S)
        self._rest = b""
        self.is_over = False

    def send(self, order: Begin | Cancel | Limit | Order) -> bool:
        """Send an order; False if the writer has ended."""
        with suppress(OSError):
            self._link.sendall(msgspec.json.encode(order) + b"\n")
            return True
        self.is_over = True
        return False

    def reports(self) -> Iterator[Report]:
        """Yield what the writer has reported by now."""
        ready = select.poll()  # select.select cannot wait for a descriptor above 1023
        ready.register(self._link, select.POLLIN)
        while not self.is_over and ready.poll(0):
            try:
                data = self._link.recv(1 << 16)
            except OSError:
                data = b""
            self.is_over = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line, type=Report)

    def end_reason(self) -> str:
        """Return why a writer did not start; "" if it did, and ended later."""
        reason = exit_reason(self._process)
        return reason if self._process.returncode else ""

    def close(self, wait_s: float = 0.0) -> None:
        """Let the writer store what it has and end; it is waited for as long as given."""
        self._link.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        if self._process.stdout is not None:
            self._process.stdout.close()
