"""What a worker's join, hello and exit cost the Weaver in a large run, against a small one."""

import time
from statistics import median

import fleet
from figure import Figure, medians
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.weaver.admission import admitted
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Exit, Hello, JoinRequest

_REPEATS = 300
_NO_LIMIT_S = 3600.0
_START_NS = 1_700_000_000 * SECOND_NS
_SMALL = 100


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Let workers end and come again, in turns in a small and in a large run."""
    large = 500 if tiny else 10_000
    runs = [_Run(_SMALL), _Run(large)]
    for run in runs:
        run.turn()
    rows = []
    for _ in range(repeats):
        small, many = (run.turn() for run in runs)
        rows.append({"small_us": small, "large_us": many})
    return [
        Figure(
            "herd",
            f"an exit, a join and a hello in a run of {large:,} workers / of {_SMALL}",
            2,
            "at most",
            [row["large_us"] / row["small_us"] for row in rows],
            medians(rows),
        )
    ]


class _Run:
    """A kernel with so many workers, all of which are at work."""

    def __init__(self, workers: int) -> None:
        settings = fleet.config()
        self._kernel = Kernel(settings, fleet.plugins(settings), DeadlineGuard(_NO_LIMIT_S))
        self._hellos: list[Hello] = [fleet.hello(worker) for worker in fleet.names(workers)]
        self._kernel.step(Recovered(epoch=1), _START_NS)
        for hello in self._hellos:
            self._kernel.step(hello, _START_NS)
        self._kernel.step(Tick(), _START_NS)

    def turn(self) -> float:
        """Return the median cost of a worker that ends and comes again, microseconds."""
        return median(self._again_us(n % len(self._hellos)) for n in range(_REPEATS))

    def _again_us(self, number: int) -> float:
        kernel, before = self._kernel, self._hellos[number]
        worker, group = before.worker, before.group
        after = self._hellos[number] = replace(before, incarnation=before.incarnation + 1)
        ended = Exit(
            run=fleet.RUN, worker=worker, incarnation=before.incarnation, status=0, expected=True
        )
        request = JoinRequest(
            run=fleet.RUN, worker=worker, incarnation=after.incarnation, public_key="", group=group
        )
        start = time.perf_counter()
        kernel.step(ended, _START_NS)
        training = kernel.run.training_groups()
        admitted(request, None, kernel.fleet, _START_NS, training, 1, lambda *_: None)
        kernel.step(after, _START_NS)
        return 1e6 * (time.perf_counter() - start)
