"""The end of a quorum during a reduction, between two of its collectives."""

import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import AllreduceOptions, Work
from torchft.process_group import ProcessGroup, ReconfigureOptions

from torchloom_threadlet.compression import CompressedProcessGroup


class Completed(Work):
    """A work that the test completes."""

    def __init__(self, answers):
        super().__init__()
        self._answers = answers

    def wait(self, timeout=None):
        assert self._answers.acquire(timeout=5.0)
        return True

    def get_future(self):
        return torch.futures.Future()


class SlowPeers(ProcessGroup):
    """Two ranks, of which the other answers zeros when the test lets it."""

    def __init__(self):
        super().__init__(0, 1)
        self.issued = []
        self._begun, self._answers = threading.Semaphore(0), threading.Semaphore(0)

    def answer(self, collectives=10):
        self._answers.release(collectives)

    def wait_until_asked(self):
        assert self._begun.acquire(timeout=5.0)

    def size(self):
        return 2

    def getBackendName(self):
        return "slow"

    def reconfigure(self, opts):
        return None

    def abort(self):
        pass

    def shutdown(self):
        pass

    def alltoall_base(self, output, *_):
        return self._ask("alltoall", output)

    def allgather(self, outputs, *_):
        for row in outputs[0]:
            row.zero_()
        return self._ask("allgather", outputs[0][0])

    def allreduce(self, tensors, *_):
        return self._ask("allreduce", tensors[0])

    def _ask(self, name, output):
        output.zero_()
        self.issued.append(name)
        self._begun.release()
        return Completed(self._answers)


def configure(pg):
    opts = ReconfigureOptions()
    peer = '{"id": "peer", "store": "localhost:1", "global_rank": null}'
    own = f'{{"id": "{pg._handle_id()}", "store": "localhost:1", "global_rank": null}}'
    opts.uuid, opts.handles = 1, [own, peer]
    pg.reconfigure(opts)


@pytest.fixture
def pg():
    pg = CompressedProcessGroup(SlowPeers(), mode="int8")
    configure(pg)
    return pg


ENDS = {
    "reconfigured": configure,
    "aborted": CompressedProcessGroup.abort,
    "shut down": CompressedProcessGroup.shutdown,
}


@pytest.mark.parametrize("issued", [["alltoall"], ["alltoall", "allgather"]], ids=len)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_reduction_of_a_past_quorum_issues_and_writes_nothing_more(pg, end, issued):
    peers, tensor = pg._pg, torch.ones(5000)
    work = pg.allreduce([tensor], AllreduceOptions())
    peers.wait_until_asked()
    for _ in issued[1:]:
        peers.answer(1)
        peers.wait_until_asked()
    end(pg)
    peers.answer()
    with pytest.raises(RuntimeError, match="the process group needs a new quorum"):
        work.wait()
    assert peers.issued == issued
    assert torch.equal(tensor, torch.ones(5000))


def test_a_reduction_without_an_answer_does_not_end_the_next_quorum(pg):
    peers = pg._pg
    late = pg.allreduce([torch.ones(5000)], AllreduceOptions())
    peers.wait_until_asked()
    configure(pg)
    tensor = torch.ones(5000)
    work = pg.allreduce([tensor], AllreduceOptions())  # does not wait for the late rank
    peers.answer()
    assert work.wait()
    assert torch.equal(tensor, torch.zeros(5000))
    with pytest.raises(RuntimeError, match="the quorum is over"):
        late.wait()


def test_a_futures_callback_may_reduce(pg):
    work = pg.allreduce([torch.ones(5000)], AllreduceOptions())
    small = work.get_future().then(lambda _: pg.allreduce([torch.ones(4)], AllreduceOptions()))
    pg._pg.answer()
    assert small.wait().wait()
    assert pg._pg.issued == ["alltoall", "allgather", "allreduce"]


def test_a_wait_that_times_out_raises_and_may_be_repeated(pg):
    work = pg.allreduce([torch.ones(5000)], AllreduceOptions())
    with pytest.raises(RuntimeError, match=r"the reduction did not end within 0:00:00.010000"):
        work.wait(timedelta(milliseconds=10))
    assert not work.is_completed()
    pg._pg.answer()
    assert work.wait()
    assert work.is_success()
