"""A GPU's tensors are copied on a side stream, for which only the GPU waits."""

import contextlib
import copy
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.checkpoint.states import save, trained
from torchloom_core.checkpoints.layout import Piece
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_threadlet.checkpoint import device_copy
from torchloom_threadlet.checkpoint.copying import Copy
from torchloom_threadlet.checkpoint.dcp_reader import CheckpointReader
from torchloom_threadlet.checkpoint.device_copy import SideStreams
from torchloom_threadlet.checkpoint.pieces import Replica, own_pieces
from torchloom_threadlet.checkpoint.saver import Saver
from torchloom_threadlet.checkpoint.slots import Slots
from torchloom_threadlet.checkpoint.state import TrainingState

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class FakeCuda:
    """Streams that work off their tasks only when a test lets them, in the order of the events."""

    def __init__(self, register=0):
        self.register, self.unregistered = register, []
        self.compute, self.side = FakeStream("compute"), FakeStream("side")
        self.now = self.compute
        self.is_capturing = False

    def Stream(self, _):
        return self.side

    def Event(self):
        return FakeEvent()

    def current_stream(self, _=None):
        return self.now

    def is_current_stream_capturing(self):
        return self.is_capturing

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    device = staticmethod(contextlib.nullcontext)

    def cudart(self):
        assert threading.current_thread() is not threading.main_thread()
        return SimpleNamespace(
            cudaHostRegister=lambda at, size, flags: self.register,
            cudaHostUnregister=self.unregistered.append,
        )


class FakeEvent:
    def record(self, stream):
        self.stream, self.after = stream, len(stream.tasks)

    def query(self):
        return self.stream.done >= self.after

    def synchronize(self):
        self.stream.run(self.after)


class FakeStream:
    def __init__(self, name):
        self.name, self.tasks, self.done = name, [], 0

    def wait_event(self, event):
        self.tasks.append(event.synchronize)

    def wait_stream(self, other):
        event = FakeEvent()
        event.record(other)
        self.wait_event(event)

    def run(self, until=None):
        until = len(self.tasks) if until is None else until
        while self.done < until:
            self.done += 1
            self.tasks[self.done - 1]()


class OnDevice:
    """A tensor that is copied by the stream that is current."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, value, cuda):
        self.value, self.cuda, self._version = torch.tensor(value), cuda, 0

    def change(self, value):
        """Have the compute stream set it, as a kernel does."""
        self._version += 1
        self.cuda.compute.tasks.append(lambda: self.value.fill_(value))


class Places:
    """Slots whose places take a device's tensor when the stream has come to it."""

    is_staged = False

    def __init__(self, cuda):
        self.cuda, self.at = cuda, {}

    def view(self, slot, piece):
        self.at[piece.name] = torch.zeros(())
        return self.at[piece.name]

    def device_view(self, slot, piece):
        def copy_(tensor, *, non_blocking):
            assert non_blocking
            self.cuda.now.tasks.append(lambda: self.at.update({piece.name: tensor.value.clone()}))

        return SimpleNamespace(copy_=copy_)


def piece(name):
    return Piece(name=name, dtype="float32", shape=(), offsets=(), sizes=(), at=0, bytes=4)


def begun():
    cuda = FakeCuda()
    places, weight, buffer = Places(cuda), OnDevice(1.0, cuda), OnDevice(2.0, cuda)
    host = torch.tensor(3.0)
    pieces = [(piece("weight"), weight), (piece("buffer"), buffer), (piece("step"), host)]
    copied = Copy(places, 0, pieces, {"weight", "step"}, SideStreams(cuda))
    return cuda, places, weight, buffer, host, copied


def test_forward_waits_for_buffers_and_the_optimizer_for_weights_on_the_gpu_alone():
    cuda, places, weight, buffer, host, copied = begun()
    buffer.change(20.0)
    assert not copied.hold()
    weight.change(10.0)
    host.fill_(30.0)
    assert not copied.is_over
    cuda.compute.run()
    assert copied.is_over
    copied.wait()
    assert {name: float(at) for name, at in places.at.items()} == {
        "weight": 1.0,
        "buffer": 2.0,
        "step": 3.0,
    }
    assert (float(weight.value), float(buffer.value), copied.torn) == (10.0, 20.0, "")


def test_a_weight_that_changes_before_the_optimizers_hook_makes_the_copy_worthless():
    cuda, _, weight, _, _, copied = begun()
    weight.change(10.0)
    cuda.side.run()
    copied.wait()
    assert copied.torn == "weight"


def test_a_copy_that_the_gpu_never_makes_is_given_up(monkeypatch):
    monkeypatch.setattr(device_copy, "_MOST_S", 0.01)
    *_, copied = begun()
    with pytest.raises(TimeoutError):
        copied.wait()


@pytest.mark.parametrize("is_hooked", [True, False])
def test_a_copy_is_dropped_if_a_step_followed_that_called_no_optimizers_hook(is_hooked):
    cuda, *_, copied = begun()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(()))])
    saver = Saver(SimpleNamespace(steppers=[optimizer]), None, ())
    saver.hold_optimizers(lambda: None)
    copied.slot, saver._copy, saver._order = 0, copied, object()
    if is_hooked:
        optimizer.step()
    saver.at_boundary()
    cuda.side.run()
    assert ("as in a CUDA graph" in saver.finish()) != is_hooked


def test_the_recording_of_a_graph_is_not_disturbed():
    cuda, *_, copied = begun()
    cuda.is_capturing = True
    tasks = len(cuda.compute.tasks)
    assert not copied.hold()
    assert len(cuda.compute.tasks) == tasks


def test_slots_are_page_locked_as_long_as_they_are_there():
    cuda = FakeCuda()
    slots = Slots(100, torch.device("cuda", 0), cuda)
    assert not slots.is_staged
    slots.remove()
    assert not cuda.unregistered
    del slots
    assert len(cuda.unregistered) == 1


def test_without_page_locked_memory_slots_work_and_one_line_says_so(caplog, monkeypatch):
    whole = torch.empty

    def refused(*args, pin_memory=False, **more):
        if pin_memory:
            raise RuntimeError("no memory can be pinned")
        return whole(*args, **more)

    monkeypatch.setattr(torch, "empty", refused)
    slots = Slots(100, torch.device("cuda", 0), FakeCuda(register=1))
    assert slots.device_view(0, piece("weight")).fill_(1.0) == slots.view(0, piece("weight"))
    (line,) = caplog.messages
    assert line.startswith("saves block training, as no memory can be page-locked: no memory")
    slots.remove()


def test_a_page_locked_buffer_is_copied_on_into_the_slot(monkeypatch):
    whole = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **more: whole(*a, **more))
    slots = Slots(100, torch.device("cuda", 0), FakeCuda(register=1))
    slots.device_view(1, piece("weight")).fill_(4.0)
    slots.unstage(1, [piece("weight")])
    assert float(slots.view(1, piece("weight"))) == 4.0
    slots.remove()


def on_gpu(width, layers):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, width, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


def staged(model, optimizer):
    state = TrainingState([model, optimizer])
    tensors, steady = state.gather(0).tensors, state.steady()
    pieces = own_pieces(tensors, frozenset(steady), Replica(0, 1), 0)
    slots = Slots(max(piece.end for piece, _ in pieces), torch.device("cuda", 0))
    return pieces, steady, slots


@gpu
@pytest.mark.gpu
def test_on_a_gpu_the_copy_is_equal_to_the_bit_though_the_optimizer_steps():
    model, optimizer = on_gpu(1024, 8)
    pieces, steady, slots = staged(model, optimizer)
    expected = [copy.deepcopy(tensor.detach()).cpu() for _, tensor in pieces]
    copied = Copy(slots, 0, pieces, steady, SideStreams())
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    copied.hold()
    optimizer.step()
    copied.wait()
    assert not copied.torn
    for (at, _), tensor in zip(pieces, expected, strict=True):
        assert torch.equal(slots.view(0, at), tensor), at.name
    slots.remove()


@gpu
@pytest.mark.gpu
def test_on_a_gpu_the_host_goes_on_before_the_copy_has_begun():
    pieces, steady, slots = staged(*on_gpu(1024, 8))
    torch.cuda._sleep(10**10)  # seconds of work before the copy
    copied = Copy(slots, 0, pieces, steady, SideStreams())
    assert not copied.hold()
    assert not slots.is_staged
    copied.wait()
    slots.remove()


@gpu
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_on_a_gpu_a_checkpoint_is_restored_to_the_bit(tmp_path):
    model, *_ = parts = trained()
    save(tmp_path, parts)
    (folder,) = (path.name for path in tmp_path.iterdir() if path.is_dir())
    state = {"model": trained(seed=1)[0].cuda().state_dict()}
    checkpoint = Checkpoint([LocalFolder(tmp_path)], folder)
    dcp.load(state, storage_reader=CheckpointReader(checkpoint), no_dist=True)
    for name, own in model.state_dict().items():
        assert torch.equal(state["model"][name].cpu(), own), name
