"""Run the writer: in the idle class, without torch.

When the trainer is gone it stores what is left, and ends.
"""

import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.checkpoints.storage import storage_at
from torchloom_threadlet.checkpoint.writer.orders import Order
from torchloom_threadlet.checkpoint.writer.storing import Writer, carry_out


def _be_idle() -> None:
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        os.nice(19)


def main() -> None:
    """Serve the trainer at the other end of the socket, then store what is left."""
    number, place, slots = sys.argv[1:4]
    if os.fork():  # no child of the trainer's: what kills its children must not end a save
        os._exit(0)
    _be_idle()
    link = socket.socket(fileno=int(number))
    orders = Orders(link)
    writer = Writer(storage_at(place), Path(slots))
    for order in orders:
        for report in carry_out(writer, order, orders.is_waiting):
            with suppress(OSError):
                link.sendall(msgspec.json.encode(report) + b"\n")
    Path(slots).unlink(missing_ok=True)


class Orders:
    """Iterate over a trainer's orders until it is gone; a line that was cut off is none."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lines: list[bytes] = []
        self._rest = b""
        self._is_over = False

    def __iter__(self) -> Iterator[Order]:
        while True:
            while not self._lines and not self._is_over:
                self._read()
            if not self._lines:
                return
            yield msgspec.json.decode(self._lines.pop(0), type=Order)

    def is_waiting(self) -> bool:
        """Return whether another order is there."""
        while not self._is_over and select.select([self._link], [], [], 0)[0]:
            self._read()
        return bool(self._lines)

    def _read(self) -> None:
        try:
            data = self._link.recv(1 << 20)
        except ConnectionError:
            data = b""
        self._is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines


if __name__ == "__main__":
    main()
