"""Where the Weaver's time goes for one batch, stage by stage, in one process without a broker.

A stage's time is the least of several seconds' worth of batches: what other processes on the
machine add is left out.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fleet
import numpy as np
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from torchloom_core.floor.clock import SystemClock
from torchloom_core.floor.nats_client import BulkClient, NatsClient
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.sealing import Sealer
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport.inbound import Inlet
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_telemetry, encode_telemetry
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry

_NO_LIMIT_S = 3600.0
_SECONDS = 6
_ROUNDS_A_SECOND = 20
"""With 1000 workers 20,000 batches a tick, which is about what one Weaver takes in a second."""

_READ_BYTES = 1 << 17
"""nats-py reads this much at once."""


async def stages_us(workers: list[str], rounds: int, samples: int) -> dict[str, float]:
    """Return CPU microseconds per batch: of both clients, then what each stage adds."""
    rng = np.random.default_rng(0)
    wire = [
        (
            subjects.telemetry(fleet.RUN, worker, fleet.INCARNATION),
            encode_telemetry(fleet.batch(worker, fleet.values(rng, samples, 0))),
        )
        for worker in workers
    ]
    data = b"".join(b"MSG %s 1 %d\r\n%s\r\n" % (s.encode(), len(d), d) for s, d in wire)
    rounds = min(rounds, _ROUNDS_A_SECOND)

    async def cost_us(client: Client, *, tick: Callable[[], None] = lambda: None) -> float:
        return 1e6 * await _least_s(client, data, rounds, tick) / (rounds * len(workers))

    async def weaver_us(*, kernel: bool = False, trajectory: bool = False) -> float:
        with (
            mock.patch.object(Sealer, "add"),  # in a process of its own
            tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder,
        ):
            weaver = _Stages(Path(folder), workers, kernel=kernel, trajectory=trajectory)
            found = await cost_us(BulkClient(weaver.take), tick=weaver.tick)
            weaver.close()
        return found

    alone, with_kernel, with_trajectory, whole = (
        await weaver_us(),
        await weaver_us(kernel=True),
        await weaver_us(trajectory=True),
        await weaver_us(kernel=True, trajectory=True),
    )
    queued = await cost_us(_subscribed(lambda data: None))
    bare = await cost_us(_subscribed(decode_telemetry))
    client = await cost_us(BulkClient(lambda subject, data: None))
    return {
        "stage_nats_py_us": queued,
        "stage_nats_py_and_decode_us": bare,
        "stage_client_us": client,
        "stage_decode_and_check_us": alone - client,
        "stage_kernel_and_ticks_us": with_kernel - alone,
        "stage_trajectory_us": with_trajectory - alone,
        "stages_together_us": whole,
        "stages_ratio": bare / whole,
    }


async def _least_s(client: Client, data: bytes, rounds: int, tick: Callable[[], None]) -> float:
    """Return the least CPU seconds in which a client takes ``data`` so often, and a tick."""
    least_s = float("inf")
    for _ in range(_SECONDS):
        started_s = time.thread_time()
        for start in [*range(0, len(data), _READ_BYTES)] * rounds:
            await client._ps.parse(data[start : start + _READ_BYTES])
            await asyncio.sleep(0)
        for subscription in client._subs.values():
            await subscription._pending_queue.join()
        tick()
        least_s = min(least_s, time.thread_time() - started_s)
    for subscription in client._subs.values():
        subscription._stop_processing()
    return least_s


def _subscribed(take: Callable[[bytes], object]) -> NatsClient:
    async def callback(msg: Msg) -> None:
        take(msg.data)

    async def fail(error: Exception) -> None:
        raise error

    client = NatsClient()
    client._subs[1] = subscription = Subscription(client, 1, "tl.>", cb=callback)
    subscription._start(fail)
    return client


class _Stages:
    """A Weaver of which parts are left out."""

    def __init__(self, folder: Path, workers: list[str], *, kernel: bool, trajectory: bool) -> None:
        settings = fleet.config()
        self.clock = SystemClock()
        now_ns = self.clock.now_ns()
        self._kernel = Kernel(settings, fleet.plugins(settings), DeadlineGuard(_NO_LIMIT_S))
        self._trajectory = TrajectoryWriter(folder, fleet.RUN, 1, settings, {}, now_ns)
        self._with_trajectory, self._with_kernel = trajectory, kernel
        for worker in workers:
            self._kernel.step(fleet.hello(worker), now_ns)
        self._inlet = Inlet(fleet.RUN, self.clock, self.receive, lambda subject, reason: None)

    def take(self, subject: bytes, data: bytes | memoryview) -> None:
        """Take a message, as a bus does."""
        self._inlet.take_telemetry(subject.decode(errors="replace"), data)

    def receive(self, message: object, ts_ns: int, data: bytes) -> bool:
        """Hand a batch to the parts that are there."""
        if isinstance(message, Telemetry):
            if self._with_trajectory:
                self._trajectory.telemetry(data, ts_ns)
            if self._with_kernel:
                self._kernel.step(message, ts_ns)
        return True

    def tick(self) -> None:
        """Close a second."""
        if self._with_kernel:
            self._kernel.step(Tick(), self.clock.now_ns())
        self._trajectory.flush()

    def close(self) -> None:
        """End the trajectory."""
        self._trajectory.close()
