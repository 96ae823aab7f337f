"""A process group that simulates a slow link: its bytes take their time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import AllreduceOptions, TCPStore
from torchft import ProcessGroupGloo
from torchft.process_group import reconfigure_with_store

from torchloom_threadlet import throttled
from torchloom_threadlet.compression import MODES, CompressedProcessGroup
from torchloom_threadlet.throttled import ThrottledProcessGroup

pytestmark = pytest.mark.integration
NUMBERS = 100_000
TIMEOUT = timedelta(seconds=20)


class Clock:
    """Sleeps end at once and are recorded."""

    def __init__(self):
        self.slept = []
        self._lock = threading.Lock()

    def monotonic(self):
        return 100.0

    def sleep(self, seconds):
        with self._lock:
            self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throttled, "time", clock)
    return clock


@pytest.fixture
def pair():
    """Two ranks of one process."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pgs = [CompressedProcessGroup(ThrottledProcessGroup(ProcessGroupGloo(TIMEOUT))) for _ in "ab"]
    with ThreadPoolExecutor(2) as threads:
        address = f"localhost:{store.port}/ring"
        list(threads.map(lambda r: reconfigure_with_store(pgs[r], address, r, 2), range(2)))
    yield pgs
    for pg in pgs:
        pg.abort()


def reduce(pgs, *, times=1):
    tensors = [torch.ones(NUMBERS) for _ in pgs]

    def run(rank):
        works = [pgs[rank].allreduce([tensors[rank]], AllreduceOptions()) for _ in range(times)]
        return [work.wait() for work in works]

    with ThreadPoolExecutor(len(pgs)) as threads:
        list(threads.map(run, range(len(pgs))))
    return tensors


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_of_a_mode_take_their_time(pair, clock, mode):
    for pg in pair:
        pg.mode, pg._pg.bytes_per_s = mode, 1000.0
    first, second = reduce(pair)
    assert torch.equal(first, second)
    sent = [pg.take_figures().cost.sent_bytes for pg in pair]
    assert sent[0] == sent[1] > 0
    # The clock does not advance, so the last of a rank's collectives sleeps for all of them.
    assert max(clock.slept) == pytest.approx(sent[0] / 1000.0)


def test_collectives_that_are_issued_at_once_share_the_link(pair, clock):
    for pg in pair:
        pg._pg.bytes_per_s = 4.0 * NUMBERS
    reduce(pair, times=3)
    assert sorted(clock.slept) == pytest.approx([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])


def test_without_a_limit_nothing_waits(pair, clock):
    reduce(pair)
    assert clock.slept == []


def test_an_error_is_raised_at_once(pair):
    for pg in pair:
        pg._pg.bytes_per_s = 1.0
    work = pair[0].allreduce([torch.ones(NUMBERS)], AllreduceOptions())
    pair[1].abort()
    with pytest.raises(RuntimeError):
        work.wait()
