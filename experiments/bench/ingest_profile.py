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

_READ_BYTES = 1 << 15
"""nats-py reads this much at once."""

Wire = list[tuple[str, bytes]]
"""Subjects and messages of a round."""


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
    each_second = min(rounds, _ROUNDS_A_SECOND)

    def cost_us(*, kernel: bool = False, trajectory: bool = False) -> float:
        with (
            mock.patch.object(Sealer, "add"),  # in a process of its own
            tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder,
        ):
            weaver = _Stages(Path(folder), workers, kernel=kernel, trajectory=trajectory)
            least_s = min(weaver.second_s(wire, each_second) for _ in range(_SECONDS))
            weaver.close()
        return 1e6 * least_s / (each_second * len(workers))

    alone, with_kernel, with_trajectory = (
        cost_us(),
        cost_us(kernel=True),
        cost_us(trajectory=True),
    )
    bare = await _least_us(wire, decode_telemetry)
    queued = await _least_us(wire, lambda data: None)
    client = await _least_us(wire, None)
    whole = client + with_kernel + with_trajectory - alone
    return {
        "stage_nats_py_us": queued,
        "stage_nats_py_and_decode_us": bare,
        "stage_client_us": client,
        "stage_decode_and_check_us": alone,
        "stage_kernel_and_ticks_us": with_kernel - alone,
        "stage_trajectory_us": with_trajectory - alone,
        "stages_together_us": whole,
        "stages_ratio": bare / whole,
    }


async def _least_us(wire: Wire, take: Callable[[bytes], object] | None) -> float:
    """Return what a client takes for a message: nats-py's that calls ``take``, or the Weaver's."""
    data = b"".join(b"MSG %s 1 %d\r\n%s\r\n" % (s.encode(), len(d), d) for s, d in wire)
    least_s = float("inf")
    for _ in range(_SECONDS):
        client = BulkClient(lambda subject, data: None) if take is None else _subscribed(take)
        started_s = time.thread_time()
        for start in range(0, len(data), _READ_BYTES):
            await client._ps.parse(data[start : start + _READ_BYTES])
            await asyncio.sleep(0)
        if take is not None:
            await client._subs[1]._pending_queue.join()
        least_s = min(least_s, time.thread_time() - started_s)
        for subscription in client._subs.values():
            subscription._stop_processing()
    return 1e6 * least_s / len(wire)


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
        self._takers: list[Callable[[Telemetry, int], object]] = []
        if trajectory:
            self._takers.append(self._trajectory.telemetry)
        if kernel:
            self._takers.append(self._kernel.step)
        for worker in workers:
            self._kernel.step(fleet.hello(worker), now_ns)
        self._inlet = Inlet(fleet.RUN, self.clock, self.receive, lambda subject, reason: None)

    def second_s(self, wire: Wire, rounds: int) -> float:
        """Take each message ``rounds`` times, then tick; return the CPU seconds."""
        took_s = 0.0
        for _ in range(rounds):
            # Each message in memory of its own, as it comes from the socket.
            arrived = [(subject, bytes(bytearray(data))) for subject, data in wire]
            started_s = time.thread_time()
            for subject, data in arrived:
                self._inlet.take_telemetry(subject, data)
            took_s += time.thread_time() - started_s
        started_s = time.thread_time()
        self.tick()
        return took_s + time.thread_time() - started_s

    def receive(self, message: object, ts_ns: int) -> bool:
        """Hand a batch to the parts that are there."""
        if isinstance(message, Telemetry):
            for take in self._takers:
                take(message, ts_ns)
        return True

    def tick(self) -> None:
        """Close a second."""
        self._kernel.step(Tick(), self.clock.now_ns())
        self._trajectory.flush()

    def close(self) -> None:
        """End the trajectory."""
        self._trajectory.close()
