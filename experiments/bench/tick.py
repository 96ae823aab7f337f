"""A tick of all built-in policies over a large fleet, against one median of the same numbers."""

import time
from collections.abc import Callable
from itertools import count
from statistics import median

import fleet
import numpy as np
from figure import Figure, medians

from torchloom_core.floor.clock import SECOND_NS, SystemClock
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.plugin import Floats
from torchloom_core.wire.codec import decode_telemetry, encode_telemetry
from torchloom_core.wire.decisions import Proposed
from torchloom_core.wire.events import Forecast, Tick
from torchloom_core.wire.messages import Telemetry

_TICKS_A_REPEAT = 5
_NO_LIMIT_S = 3600.0
_HAZARD = 0.01


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Tick a kernel whose workers have all just reported, and take the median, in turns."""
    workers = fleet.names(100 if tiny else 10_000)
    bench = _Bench(workers)
    bench.turn()
    rows = [bench.turn() for _ in range(repeats)]
    numbers = medians(rows)
    numbers["proposals_per_tick"] = bench.proposals / bench.ticks
    metrics = len(fleet.METRICS)
    shape = f"{len(workers):,} workers x {metrics} metrics"
    return [
        Figure(
            "tick",
            f"a kernel's whole tick, {shape} / np.nanmedian(x, axis=0) of the same",
            20,
            "at most",
            [row["tick_ms"] / row["nanmedian_axis0_ms"] for row in rows],
            numbers,
        )
    ]


class _Bench:
    """A kernel with the built-in policies, and the batches of one second of the fleet."""

    def __init__(self, workers: list[str]) -> None:
        settings = fleet.config()
        self._kernel = Kernel(settings, fleet.plugins(settings), DeadlineGuard(_NO_LIMIT_S))
        self._now_ns = SystemClock().now_ns()
        self._workers = workers
        self._seconds = [_second(workers, number) for number in range(_TICKS_A_REPEAT)]
        self._forecasts = count()
        self.proposals = 0
        self.ticks = 0
        for worker in workers:
            self._kernel.step(fleet.hello(worker), self._now_ns)

    def turn(self) -> dict[str, float]:
        """Tick as often as there are seconds; return the medians, in milliseconds."""
        rows = [self._second(table, batches) for table, batches in self._seconds]
        return {name: median(row[name] for row in rows) for name in rows[0]}

    def _second(self, table: Floats, batches: list[Telemetry]) -> dict[str, float]:
        self._now_ns += SECOND_NS
        for batch in batches:
            self._kernel.step(batch, self._now_ns)
        self._kernel.step(self._forecast(), self._now_ns)
        took = {
            "nanmedian_axis0_ms": _took_ms(lambda: np.nanmedian(table, axis=0)),
            "nanmedian_all_ms": _took_ms(lambda: np.nanmedian(table)),
            "tick_ms": _took_ms(self._tick),
        }
        self._kernel.step(self._forecast(), self._now_ns)
        forecasts = self._kernel.forecasts.newest
        view = self._kernel.fleet.view(self._now_ns, forecasts)
        took["view_ms"] = _took_ms(lambda: self._kernel.fleet.view(self._now_ns, forecasts))
        took["policies_ms"] = _took_ms(lambda: self._kernel.host.propose(view, 0))
        return took

    def _tick(self) -> None:
        outputs = self._kernel.step(Tick(), self._now_ns)
        self.ticks += 1
        self.proposals += sum(isinstance(output, Proposed) for output in outputs)

    def _forecast(self) -> Forecast:
        """Return a fresh forecast that judges every worker: the policy acts on each once."""
        return Forecast(
            id=f"f{next(self._forecasts)}",
            predictor="trend",
            horizon_s=60.0,
            hazard=dict.fromkeys(self._workers, _HAZARD),
            latency_s=0.0,
        )


def _second(workers: list[str], number: int) -> tuple[Floats, list[Telemetry]]:
    """Return ``(workers, metrics)`` values and the batches, as decoded, that bring them."""
    rng = np.random.default_rng(number)
    table = fleet.values(rng, len(workers), number)
    encoded = [
        encode_telemetry(fleet.batch(worker, table[row : row + 1]))
        for row, worker in enumerate(workers)
    ]
    return table, [decode_telemetry(data) for data in encoded]


def _took_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)
