"""Where the Weaver's time goes for one batch, stage by stage, in one process without a broker."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fleet
import numpy as np

from torchloom_core.floor.clock import SystemClock
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport.inbound import Inlet
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Telemetry

_NO_LIMIT_S = 3600.0
_ROUNDS_A_TICK = 20
"""With 1000 workers 20,000 batches a tick, which is about what one Weaver takes in a second."""


async def stages_us(workers: list[str], rounds: int, samples: int) -> dict[str, float]:
    """Return CPU microseconds per batch: decoded and checked, then what each stage adds."""
    alone = await _cost_us(workers, rounds, samples, kernel=False, trajectory=False)
    with_kernel = await _cost_us(workers, rounds, samples, kernel=True, trajectory=False)
    with_trajectory = await _cost_us(workers, rounds, samples, kernel=False, trajectory=True)
    return {
        "stage_decode_and_check_us": alone,
        "stage_kernel_and_ticks_us": with_kernel - alone,
        "stage_trajectory_us": with_trajectory - alone,
    }


async def _cost_us(
    workers: list[str], rounds: int, samples: int, *, kernel: bool, trajectory: bool
) -> float:
    rng = np.random.default_rng(0)
    encoded = [
        (
            subjects.telemetry(fleet.RUN, worker, fleet.INCARNATION),
            encode_telemetry(fleet.batch(worker, fleet.values(rng, samples, 0))),
        )
        for worker in workers
    ]
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        weaver = _Stages(Path(folder), workers, kernel=kernel, trajectory=trajectory)
        inlet = Inlet(fleet.RUN, weaver.clock, weaver.receive, lambda subject, reason: None)
        took_s = 0.0
        for number in range(rounds):
            # Each message in memory of its own, as it comes from the socket.
            arrived = [(subject, bytes(bytearray(data))) for subject, data in encoded]
            started_s = time.process_time()
            for subject, data in arrived:
                inlet.take_telemetry(subject, data)
            if (number + 1) % _ROUNDS_A_TICK == 0 or number == rounds - 1:
                weaver.tick()
            took_s += time.process_time() - started_s
        weaver.close()
    return 1e6 * took_s / (rounds * len(workers))


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
