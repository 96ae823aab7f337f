"""The process of the sidecar, which talks to the Weaver for the trainer.

Started by the link with ``SOCKET_FD TRAINER_PID [STACKS_FD [TRAINER_PIDFD]]``; it ends when the
trainer's process has ended and the Weaver has the report of it.
"""

import asyncio
import logging
import os
import signal
import socket
import sys

from torchloom_core.floor.errors import MessageError
from torchloom_threadlet import ipc
from torchloom_threadlet.sidecar.process import Process, give_up
from torchloom_threadlet.sidecar.service import Sidecar


async def serve(descriptor: int, process: Process) -> None:
    """Read the attach frame from the trainer, then be its sidecar."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    unpacker = ipc.Unpacker()
    first: list[bytes] = []
    while not first:
        data = await reader.read(1 << 16)
        if not data:
            return
        first = unpacker.feed(data)
    attach = ipc.for_sidecar(first[0])
    if not isinstance(attach, ipc.Attach):
        raise MessageError(f"need an attach frame first, was {type(attach).__name__}")
    sidecar = Sidecar(attach, writer, process)
    for body in first[1:]:
        await sidecar.take(body)
    await sidecar.run(reader, unpacker)


def main() -> None:
    """Run the sidecar of the trainer named on the command line."""
    # A signal that ends the trainer often goes to its whole job; the sidecar has to report the end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=os.environ.get("TORCHLOOM_LOG", "WARNING"),
        format="torchloom sidecar: %(levelname)s: %(message)s",
    )
    descriptor, *process = (int(argument) for argument in sys.argv[1:])
    asyncio.run(_serve_and_exit(descriptor, Process(*process)))


async def _serve_and_exit(descriptor: int, process: Process) -> None:
    try:
        await serve(descriptor, process)
    except Exception as error:  # noqa: BLE001 - whatever it is, the link starts another
        give_up(error)
    # A collector may hang in a driver's call; waiting for its thread would never end.
    os._exit(0)


if __name__ == "__main__":
    main()
