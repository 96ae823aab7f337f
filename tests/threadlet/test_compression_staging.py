"""The way of a reduction on an accelerator: which copies wait for what, and what is measured."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import AllreduceOptions
from torch.utils._python_dispatch import TorchDispatchMode

from tests.examples import examples
from tests.threadlet.fake_accelerator import FakeAccelerator, FakeStream
from tests.threadlet.test_compression_lane import SlowPeers, configure
from tests.threadlet.test_pieces import CODECS, bits, reduce
from torchloom_threadlet.compression import MODES, CompressedProcessGroup
from torchloom_threadlet.compression.codecs import Memory, edges
from torchloom_threadlet.compression.collectives import Exchange, Peers, drive, reduce_together
from torchloom_threadlet.compression.figures import Cost, Meter
from torchloom_threadlet.compression.staging import Accelerator, DeviceWay, StagedWay
from torchloom_threadlet.compression.work import CompressedWork

WAITS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.equal.default"}


class NoWait(TorchDispatchMode):
    """Fails at an operation that would make the host wait for an accelerator."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert str(function) not in WAITS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", CODECS)
@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_no_codec_makes_the_host_wait_for_the_device(mode, value):
    memories = [Memory()] * 2
    for _ in range(2):
        tensors = [torch.full((5000,), value) for _ in range(2)]
        pairs = enumerate(zip(tensors, memories, strict=True))
        reductions = [CODECS[mode].reduce(one, own, Peers(at, 2)) for at, (one, own) in pairs]
        with NoWait():
            memories = [memory for _, memory in reduce_together(reductions)]


@given(
    mode=st.sampled_from(MODES),
    ranks=st.integers(2, 3),
    pieces=st.integers(1, 4),
    at_once=st.integers(1, 3),
    kind=st.sampled_from([StagedWay, DeviceWay]),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(15), deadline=None)
def test_a_reduction_on_a_device_ends_with_the_bits_of_one_on_the_host(
    mode, ranks, pieces, at_once, kind, seed
):
    numbers = 6000
    at = [0, numbers] if CODECS[mode].is_whole else edges(numbers, 4, 0, pieces)
    ways = [kind(FakeAccelerator()) for _ in range(ranks)]
    ended = []
    for given_ways in (None, ways):
        generator = torch.Generator().manual_seed(seed)
        tensors = [torch.randn(numbers, generator=generator) for _ in range(ranks)]
        memories = [Memory(torch.randn(numbers, generator=generator)) for _ in range(ranks)]
        now, _ = reduce(mode, tensors, memories, at, at_once, given_ways)
        ended.append([*tensors, *(memory.residual for memory in now)])
    for on_host, on_device in zip(*ended, strict=True):
        assert torch.equal(bits(on_host), bits(on_device))


class Alone:
    """A collective whose answer is its own rows."""

    def __init__(self, log):
        self._log = log

    def __call__(self, collective):
        self._log.append("issued")
        return self, getattr(collective, "rows", getattr(collective, "row", None))

    def get_future(self):
        return torch.futures.Future()

    def wait(self):
        self._log.append("waited")


def test_a_piece_is_issued_only_after_the_next_one_is_coded():
    log, accelerator = [], FakeAccelerator()

    class Logged(StagedWay):
        def coding(self):
            log.append("coded")
            return super().coding()

    def reduction():
        yield Exchange(torch.zeros(2, 8, dtype=torch.uint8))

    drive([reduction(), reduction()], Alone(log), 2, Logged(accelerator))
    assert log[:5] == ["coded", "coded", "issued", "issued", "waited"]


def test_times_of_the_device_count_once_they_are_known():
    accelerator, meter = FakeAccelerator(), Meter()
    way = StagedWay(accelerator)
    with accelerator.on(accelerator.to_host), way._measured(accelerator.to_host):
        accelerator.copy(torch.zeros(1), torch.zeros(1))
    meter.end(meter.begin(4000), Cost(100, wire_s=0.5), way.read)
    assert meter.take().cost == Cost(100, 0.0, 0.5)
    accelerator.mark(accelerator.to_host).synchronize()
    assert meter.take().cost == Cost(0, 0.001, 0.0)
    assert meter.take().cost == Cost()


def test_the_waiting_stream_waits_for_the_coding_stream():
    accelerator, tensor = FakeAccelerator(), torch.zeros(1)
    accelerator.coding = FakeStream()  # not the trainer's
    work = CompressedWork([tensor], accelerator)
    work.run(lambda: accelerator.copy(tensor, torch.ones(1)))
    assert tensor == 0
    assert work.wait()
    assert tensor == 1


def test_without_page_locked_memory_other_memory_is_used(monkeypatch):
    empty = torch.empty

    def none_to_lock(*shape, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("out of memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", none_to_lock)
    memory = Accelerator.host_memory(None, torch.zeros(2, 3))
    assert (memory.shape, memory.is_pinned()) == ((2, 3), False)


class Aborted(SlowPeers):
    def errored(self):
        return RuntimeError("aborted")


def test_an_error_that_only_the_backend_saw_discards_the_steps_memories():
    pg = CompressedProcessGroup(Aborted(), mode="topk")
    configure(pg)
    pg._pg.answer()
    assert pg.allreduce([torch.ones(5000)], AllreduceOptions()).wait()
    assert pg.errored() is not None
    pg.allreduce([torch.ones(5000)], AllreduceOptions())
    assert pg._feedback._committed == {}


# --- on a GPU --------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [StagedWay, DeviceWay])
def test_on_a_gpu_all_ranks_end_with_the_same_bits_and_the_device_measures(mode, kind):
    device = torch.device("cuda", torch.cuda.current_device())
    accelerator = Accelerator(device)  # one, as the ranks' threads use each other's tensors
    ways = [kind(accelerator) for _ in range(2)]
    tensors = [torch.randn(100_000, device=device) for _ in range(2)]
    exact, memories = sum(tensors), [Memory()] * 2
    at = [0, 100_000] if CODECS[mode].is_whole else edges(100_000, 4, 0, 3)
    torch.cuda.synchronize()
    reduce(mode, tensors, memories, at, 2, ways)
    torch.cuda.synchronize()
    assert torch.equal(bits(tensors[0]), bits(tensors[1]))
    if mode in ("none", "bf16", "fp16", "int8"):
        torch.testing.assert_close(tensors[0], exact, atol=0.1, rtol=0.02)
    for way in ways:
        assert way.read().compress_s > 0.0
