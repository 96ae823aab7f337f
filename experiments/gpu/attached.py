"""A loom of this process: a broker and what answers for the Weaver, in a thread beside it."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchloom_threadlet
from torchloom_core.wire.codec import decode_telemetry
from torchloom_core.wire.messages import Telemetry
from torchloom_threadlet.loom import Loom

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from scene import PATIENCE_S, open_bus, running_broker, write_join_file


class Received:
    """The telemetry that has arrived.

    Attributes
    ----------
    values : dict of str to list of float
        The values of each metric, in the order of the samples that have it.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self._changed = threading.Condition()

    def receive(self, message: object, ts_ns: int, data: bytes) -> bool:
        """Take what the bus hands on."""
        del ts_ns
        if isinstance(message, Telemetry):
            batch = decode_telemetry(data)  # the bus has decoded the newest sample alone
            numbers = array("d", batch.values)
            width = len(batch.metrics)
            with self._changed:
                for place, name in enumerate(batch.metrics):
                    self.values[name] += [x for x in numbers[place::width] if x == x]
                self._changed.notify_all()
        return True

    def until(self, metric: str, samples: int) -> list[float]:
        """Return the values of ``metric`` once there are so many, or after a minute."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.values[metric]) >= samples, PATIENCE_S / 2)
            return list(self.values[metric])


@contextlib.contextmanager
def attached(**arguments: Any) -> Iterator[tuple[Loom, Received]]:
    """Yield a loom that has joined, and what arrives of it."""
    received, ready, over = Received(), threading.Event(), threading.Event()
    problem: list[BaseException] = []

    async def serve() -> None:
        async with running_broker() as (broker, folder), open_bus(broker, received.receive):
            os.environ["TORCHLOOM_JOIN"] = str(write_join_file(broker, folder))
            ready.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            problem.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="weaver", daemon=True)
    thread.start()
    ready.wait()
    if problem:
        raise problem[0]
    loom = torchloom_threadlet.attach(framework="gpu", **arguments)
    try:
        while not received.values:  # it has joined: the first figures have arrived
            loom.step()
            time.sleep(0.01)
            if problem:
                raise problem[0]
        yield loom, received
    finally:
        loom.close()
        over.set()
        thread.join()
