"""The cost of measuring a step's allreduces and reporting each bucket."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from fence_cost import of_steps
from figure import Figure
from torch.distributed import AllreduceOptions, TCPStore  # type: ignore[attr-defined]
from torchft import ProcessGroupGloo
from torchft.process_group import reconfigure_with_store

from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.compression.figures import Cost, Entry, Figures, Meter, Overlap

RANKS = 2
BUCKETS = 8
NUMBERS = 131_072
"""Of a bucket: together 4 MB, as in the fence's benchmark."""
PAUSE_S = 0.005
ARMS = ("measured", "silent")


class SilentOverlap(Overlap):
    """Ignores waits."""

    def begin(self, what: str) -> None:
        """Take no note."""

    def end(self, what: str) -> None:
        """Take no note."""

    def forget(self) -> None:
        """Take no note."""


class SilentMeter(Meter):
    """Counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.overlap = SilentOverlap()

    def begin(self, gradient_bytes: int) -> Entry:
        """Count nothing."""
        del gradient_bytes
        return _ENTRY

    def end(self, entry: Entry, cost: Cost) -> None:
        """Count nothing."""

    def take(self) -> Figures:
        """Return nothing."""
        return _NOTHING


_ENTRY = Entry(0)
_NOTHING = Figures()


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Have two ranks take turns with and without, in threads over gloo."""
    turns, steps = (1, 3) if tiny else (20, 10)
    took: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(repeats):
        for arm, seconds in (await asyncio.to_thread(_one, turns, steps)).items():
            took[arm] += seconds
    what = f"a step of {BUCKETS} allreduces that are measured / that are not, {RANKS} ranks"
    alone_us = _alone_us()
    return [of_steps("measuring", what, 1.02, took, "measured", "silent", alone_us=alone_us)]


def _one(turns: int, steps: int) -> dict[str, list[float]]:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    gloos = [ProcessGroupGloo(timeout=timedelta(seconds=60)) for _ in range(RANKS)]
    pgs = [CompressedProcessGroup(gloo) for gloo in gloos]
    address = f"localhost:{store.port}/bench"
    took: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with ThreadPoolExecutor(RANKS) as threads:
        list(threads.map(lambda r: reconfigure_with_store(pgs[r], address, r, RANKS), range(RANKS)))
        for turn in range(turns + 1):  # the first warms up
            for arm in ARMS[:: 1 if turn % 2 else -1]:
                for pg in pgs:
                    pg._meter = Meter() if arm == "measured" else SilentMeter()
                seconds = max(threads.map(lambda pg: _steps(pg, steps), pgs))
                if turn:
                    took[arm].append(seconds)
    for pg in pgs:
        pg.abort()
    return took


def _steps(pg: CompressedProcessGroup, steps: int) -> float:
    buckets = [torch.ones(NUMBERS) for _ in range(BUCKETS)]
    began = time.perf_counter()
    for _ in range(steps):
        time.sleep(PAUSE_S)
        works = [pg.allreduce([bucket], AllreduceOptions()) for bucket in buckets]
        for work in works:
            pg.overlap.begin("allreduce")
            work.wait()
            pg.overlap.end("allreduce")
        pg.end_step(committed=True)
        pg.take_figures().metrics()
    return (time.perf_counter() - began) / steps


def _alone_us() -> float:
    """Return what the calls of a step take by themselves."""
    meter, rounds = Meter(), 1000
    began = time.perf_counter()
    for _ in range(rounds):
        for _ in range(BUCKETS):
            entry = meter.begin(4 * NUMBERS)
            meter.overlap.begin("allreduce")
            meter.end(entry, Cost(1, 1.0, 1.0))
            meter.overlap.end("allreduce")
        meter.take().metrics()
    return 1e6 * (time.perf_counter() - began) / rounds
