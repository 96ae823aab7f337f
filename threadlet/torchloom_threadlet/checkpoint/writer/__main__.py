"""Run the writer: in the idle class, without torch.

When the trainer is gone it stores what is left, and ends.
"""

import mmap
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_threadlet.checkpoint.writer.orders import (
    SLOTS,
    Begin,
    Cancel,
    Limit,
    Order,
    Report,
)
from torchloom_threadlet.checkpoint.writer.pace import Pace
from torchloom_threadlet.checkpoint.writer.storing import Part
from torchloom_threadlet.checkpoint.writer.tier_storage import storage_of
from torchloom_threadlet.checkpoint.writer.tier_thread import TierThread


def _be_idle() -> None:
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError):  # Linux may share cores between sessions first: take a tenth
        Path("/proc/self/autogroup").write_text("10")


def main() -> None:
    """Serve the trainer at the other end of the socket, then store what is left."""
    number, slots = sys.argv[1:3]
    if os.fork():  # no child of the trainer's: what kills its children must not end a save
        os._exit(0)
    _be_idle()
    link = socket.socket(fileno=int(number))
    try:
        with Path(slots).open("rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        sys.exit(f"the memory of a save is gone: {error}")
    size = len(memory) // SLOTS
    pace, threads, reporting = Pace(), dict[str, TierThread](), threading.Lock()

    def report(report: Report) -> None:
        with reporting, suppress(OSError):
            link.sendall(msgspec.json.encode(report) + b"\n")

    for line in _lines(link):
        match msgspec.json.decode(line, type=Begin | Cancel | Limit | Order):
            case Begin(tiers=tiers):
                for tier in tiers:
                    threads[tier.name] = TierThread(tier, storage_of(tier, pace), pace, report)
                    threads[tier.name].start()
            case Cancel(step=step):
                for thread in threads.values():
                    thread.cancel(step)
            case Limit(bytes_per_s=rate):
                pace.bytes_per_s = rate
            case Order() as order:
                part = Part(order, memory[order.slot * size : (order.slot + 1) * size])
                for name in order.tiers:
                    threads[name].put(part)
    for thread in threads.values():
        thread.finish()
    for thread in threads.values():
        thread.join()
    Path(slots).unlink(missing_ok=True)


def _lines(link: socket.socket) -> Iterator[bytes]:
    """Yield a trainer's lines until it is gone; one that was cut off is none."""
    rest = b""
    while True:
        try:
            data = link.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


if __name__ == "__main__":
    main()
