"""A process group on NCCL: its abort, its errors, its modes, by a stand-in without a GPU."""

import logging
import threading
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import ErrorType
from torch.distributed import AllreduceOptions, TCPStore
from torchft.process_group import ProcessGroup, ProcessGroupBabyGloo, ReconfigureOptions

from tests.threadlet.nccl_stand_in import Native
from tests.threadlet.ranks import started
from tests.threadlet.test_compression_lane import SlowPeers, configure
from tests.waiting import until
from torchloom_threadlet.adapters.torchft import communicators as module
from torchloom_threadlet.adapters.torchft.communicators import Communicators
from torchloom_threadlet.compression import MODES, CompressedProcessGroup, allreduce_knobs


class StandIn(SlowPeers):
    """Counts its aborts."""

    aborted = 0

    def getBackendName(self):
        return "torchft-nccl"

    def abort(self):
        self.aborted += 1


SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class Opts:
    uuid, handles = 3, ("a", "b")


@pytest.fixture
def pg(monkeypatch):
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    return StandIn()


def test_a_cut_aborts_the_process_group_of_its_present_quorum_only(pg):
    communicators = Communicators(pg)
    pg.reconfigure(Opts)
    assert communicators.refusal(4) == "need the present quorum, 3, was 4"
    assert communicators.cut(2) == "quorum 2 is over already, the present one is 3"
    assert pg.aborted == 0
    assert communicators.refusal(3) == ""
    assert communicators.cut(3) == "the process group is aborted"
    assert pg.aborted == 1


def test_an_error_in_a_step_is_passed_on_once_after_the_decision(pg):
    communicators = Communicators(pg)
    communicators.begin_step()
    communicators.pass_error_on()
    communicators.pass_error_on()
    assert pg.aborted == 0
    communicators.end_step()
    communicators.pass_error_on()  # between two steps, which the Manager discards
    communicators.begin_step()
    communicators.end_step()
    assert pg.aborted == 1


def test_an_error_is_not_passed_on_where_it_would_end_the_peers(pg, monkeypatch, caplog):
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    with caplog.at_level(logging.WARNING):
        communicators = Communicators(pg)
    communicators.pass_error_on()
    communicators.end_step()
    assert pg.aborted == 0
    (record,) = caplog.records
    assert record.getMessage().endswith("set TORCH_NCCL_ASYNC_ERROR_HANDLING=0 on all ranks")
    before = set(threading.enumerate())
    pg._pg = Native(None, frozenset())
    pg.reconfigure(Opts)
    assert set(threading.enumerate()) == before


def test_an_error_that_torch_has_found_aborts_once_and_fails_the_step(pg):
    compressed = CompressedProcessGroup(pg, mode="topk")
    Communicators(compressed)
    pg._pg = native = Native(None, frozenset())
    configure(compressed)
    assert compressed.errored() is None
    native.state.error = ErrorType.COMM_ERROR
    assert str(compressed.errored()) == "torch has found COMM_ERROR in a collective"
    assert compressed._verdict is False
    until(lambda: pg.aborted)
    pg._pg = None  # as torchft does


def test_neither_a_cut_nor_a_failed_step_waits_for_an_abort_that_hangs(pg, monkeypatch):
    monkeypatch.setattr(module, "_ABORT_S", 0.01)
    ends = threading.Event()
    pg.abort = ends.wait
    communicators = Communicators(pg)
    pg.reconfigure(Opts)
    assert communicators.cut(3) == "the process group is being aborted"
    communicators.pass_error_on()
    communicators.end_step()
    ends.set()


def test_without_another_thread_an_abort_is_made_in_the_training_thread(pg, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    communicators = Communicators(pg)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    communicators.pass_error_on()
    communicators.end_step()
    assert pg.aborted == 1


def test_a_process_group_in_another_process_has_no_abort_and_compresses_nothing():
    baby = ProcessGroupBabyGloo()
    with pytest.raises(TypeError, match="torchft-baby-gloo has no abort"):
        Communicators(baby)
    compressed = CompressedProcessGroup(baby)
    assert compressed.modes == ("none",)
    with pytest.raises(ValueError, match="int8 needs a process group in this process, was torchft"):
        compressed.mode = "int8"


def test_nccl_can_do_every_mode(pg, caplog):
    compressed = CompressedProcessGroup(pg)
    assert compressed.modes == MODES
    assert allreduce_knobs(compressed)[0]["choices"] == MODES
    assert not caplog.records


class Partial(StandIn):
    """Lacks the exchange between all ranks."""

    alltoall_base = ProcessGroup.alltoall_base


def test_a_mode_whose_collective_the_backend_lacks_is_refused_when_it_is_set(caplog):
    why = (
        "compression int8 needs alltoall_base, which torchft-nccl lacks: use none or topk,"
        " or another backend"
    )
    with pytest.raises(ValueError, match=why):
        CompressedProcessGroup(Partial(), mode="int8")
    compressed = CompressedProcessGroup(CompressedProcessGroup(Partial()))
    with pytest.raises(ValueError, match=why):
        compressed.mode = "int8"
    assert compressed.mode == "none"
    assert allreduce_knobs(compressed)[0]["choices"] == ("none", "topk")
    (record,) = caplog.records
    assert record.getMessage() == why.replace("int8", "bf16")


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.integration
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:TORCH_NCCL_NONBLOCKING_TIMEOUT is not set")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_a_world_of_one_reduces_is_aborted_and_is_configured_anew(monkeypatch):
    from torchft import ProcessGroupNCCL

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pg = CompressedProcessGroup(ProcessGroupNCCL(timedelta(seconds=20)), mode="int8")
    communicators = Communicators(pg)
    tensor = torch.ones(5000, device="cuda")
    for quorum in (1, 2):
        opts = ReconfigureOptions()
        address = f"localhost:{store.port}/{quorum}"
        opts.uuid = quorum
        opts.handles = [f'{{"id": "{pg._handle_id()}", "store": "{address}", "global_rank": 0}}']
        pg.reconfigure(opts)
        assert pg.allreduce([tensor], AllreduceOptions()).wait()
        assert pg.errored() is None
        assert communicators._error_of(pg._pg._pg) == ""
        assert communicators.cut(quorum) == "the process group is aborted"
        assert pg.errored() is not None
    assert (tensor == 1).all()


TWO = {
    "gloo on one device": (("cuda:0",), "Gloo", 1, "no CUDA device"),
    "NCCL": (("cuda:0", "cuda:1"), "NCCL", 2, "fewer than two CUDA devices"),
}


@pytest.mark.gpu
@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize(("devices", "backend", "least", "why"), TWO.values(), ids=TWO)
def test_on_gpus_two_processes_end_with_the_same_bits_and_are_timed(devices, backend, least, why):
    if torch.cuda.device_count() < least:
        pytest.skip(why)
    with started(60.0, 2, devices, backend) as two:
        two.gather(0, 1)
        two.all("pieces", at_once=2)
        for mode in MODES:
            two.all("mode", mode=mode)
            two.all("figures")
            for step in range(3):
                two.agree("step", seed=step, shapes=[[200_003], [64, 130], [3, 1000, 5]])
            if mode != "none":
                assert all(figures["compress_s"] > 0.0 for figures in two.all("figures"))
