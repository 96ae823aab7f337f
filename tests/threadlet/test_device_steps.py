"""Time by phase and metrics that a device computes, read without waiting for it."""

import multiprocessing
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.threadlet.fake_device import FakeDevice, OnDevice
from torchloom_core.plugin import Migrate
from torchloom_core.testing import view_of
from torchloom_policies.straggler import StragglerPolicy
from torchloom_threadlet.device.peak_flops import peak_flops
from torchloom_threadlet.device.source import CudaDevice
from torchloom_threadlet.device.steps import BACKWARD, FORWARD, OPTIMIZER, OTHER, DeviceSteps
from torchloom_threadlet.ipc import COMPUTE
from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def steps(device):
    return DeviceSteps(device)


def step(device, steps, waits_s=0.25, own_s=1.0, metrics=None):
    """Make one step on the device; return its row."""
    steps.begin_step()
    device.now_s += own_s
    steps.begin("allreduce")
    device.now_s += waits_s
    steps.end("allreduce")
    steps.end_step()
    return steps.read_later(metrics or {})


def test_own_time_is_that_of_the_device_without_its_waits(device, steps):
    phases = Phases()
    phases.device = steps
    steps.begin_step()
    for phase, own_s in ((FORWARD, 1), (BACKWARD, 2), (OPTIMIZER, 4), (OTHER, 8)):
        steps.enter(phase)
        device.now_s += own_s
        phases.begin("quorum")
        phases.begin("commit")
        device.now_s += 16
        phases.end("commit")
        phases.end("quorum")
    steps.end_step()
    row = steps.read_later({"loss": 0.5, "wait_s": 3.0})
    steps.read()
    assert row == {
        "loss": 0.5,
        "forward_s": 1,
        "backward_s": 2,
        "optimizer_s": 4,
        "wait_s": 64,
        "compute_s": 15,
    }


def test_a_round_sums_the_waits_of_its_steps_on_the_device(device, steps):
    step(device, steps, 0.25)
    row = step(device, steps, 0.5, metrics={"round_wait_s": 99.0, "wait_s": 99.0})
    steps.read()
    assert row["round_wait_s"] == 0.75


def test_a_row_waits_for_a_device_that_lags_and_rows_stay_in_order(device, steps):
    device.lags = True
    rows = [step(device, steps, metrics={"loss": OnDevice(n)}) for n in range(3)]
    assert [row.is_ready for row in rows] == [False] * 3
    assert rows[0] == {}
    device.finish(6)  # four events of the first step, its copy and its end
    steps.read()
    assert [row.is_ready for row in rows] == [True, False, False]
    device.finish()
    steps.read()
    assert [(row["loss"], row["compute_s"], row["wait_s"]) for row in rows] == [
        (n, 1.0, 0.25) for n in range(3)
    ]


def test_a_step_is_read_once_all_its_events_are_over_also_of_another_stream(device, steps):
    steps.begin_step()
    device.lags = True
    device.now_s = 5.0
    steps.enter(FORWARD)  # in a stream that lags
    device.lags = False
    device.now_s = 2.0
    steps.begin("allreduce")
    steps.end("allreduce")
    steps.end_step()
    row = steps.read_later({})
    steps.read()
    assert not row.is_ready
    device.finish()
    steps.read()
    assert (row["forward_s"], row["wait_s"]) == (0.0, 0.0)


def test_nothing_grows_with_a_device_that_never_answers_or_always_does(device, steps):
    for _ in range(100):
        step(device, steps, metrics={"loss": OnDevice(1)})
    made = device.made
    device.lags = True
    rows = [step(device, steps, metrics={"loss": OnDevice(1), "step": n}) for n in range(300)]
    assert rows[-1] == {"step": 299}  # without its loss: 64 are in flight
    assert device.made <= made + 64 * 6
    steps.close(0.0)
    assert all(row.is_ready for row in rows[:64])


def test_a_process_ends_while_another_of_its_threads_hangs_in_the_driver(device, steps):
    hangs, ends = threading.Event(), threading.Event()

    def hang(event):
        hangs.set()
        ends.wait()

    device.record = hang
    thread = threading.Thread(target=steps.begin_step)
    thread.start()
    hangs.wait()
    steps.close(0.01)
    ends.set()
    thread.join()


@pytest.mark.integration
def test_a_forked_child_measures_nothing_and_waits_for_no_lock(device, steps):
    holds, ends = threading.Event(), threading.Event()

    def hold():
        with steps._lock:
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    child = multiprocessing.get_context("fork").Process(target=step, args=(device, steps))
    child.start()
    child.join(20)
    ends.set()
    thread.join()
    assert child.exitcode == 0


def test_a_tensor_that_cannot_be_copied_costs_that_metric_alone(device, steps):
    copy = device.copy

    def only_dense(value, pinned):
        if value.number is None:
            raise NotImplementedError("sparse")
        copy(value, pinned)

    device.copy = only_dense
    row = step(device, steps, metrics={"loss": OnDevice(2.0), "embedding": OnDevice(None)})
    steps.read()
    assert row == {"loss": 2.0, "wait_s": 0.25, "compute_s": 1.0}


def test_nothing_is_recorded_or_queried_in_a_capture_and_the_step_is_not_measured(device, steps):
    device.lags = True
    first = step(device, steps)
    device.finish()
    steps.begin_step()
    device.capturing = True
    steps.enter(FORWARD)
    device.capturing = False
    steps.end_step()
    assert steps.read_later({"loss": 1.0, "wait_s": 2.0}) == {"loss": 1.0}
    device.capturing = True
    assert steps.read_later({"loss": OnDevice(1), "rank": 0}) == {"rank": 0}
    device.capturing = False
    assert first.is_ready
    assert "compute_s" in first


def test_a_device_that_fails_ends_the_measurement_with_one_line(device, steps, caplog):
    device.lags = True
    row = step(device, steps)
    device.event = None
    assert step(device, steps, metrics={"loss": OnDevice(1), "step": 3}) == {"step": 3}
    step(device, steps)
    assert row.is_ready
    assert [line.split(":")[0] for line in caplog.messages] == [
        "nothing is measured on the GPU any more"
    ]


def test_a_host_that_waits_for_its_own_device_does_not_wait_for_others(device, steps, monkeypatch):
    phases = Phases()
    phases.device = steps
    steps.begin_step()
    device.lags = True
    steps.enter(FORWARD)
    phases.begin("commit")
    begun_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: begun_ns + 10**9)
    assert phases.present().name == COMPUTE
    device.finish(1)
    assert phases.present().name == COMPUTE  # in forward
    device.finish()
    assert phases.present().name == "commit"


def test_the_straggler_policy_finds_a_slow_gpu_in_steps_that_all_take_as_long(device):
    own_s = []
    for slow_s in (0.0, 0.0, 0.0, 1.0):
        steps = DeviceSteps(device)
        row = step(device, steps, waits_s=1.5 - slow_s, own_s=0.5 + slow_s)
        steps.read()
        own_s.append(row["compute_s"])
    policy = StragglerPolicy(StragglerPolicy.Options(patience=1))
    values = {"step_time_s": np.full(4, 2.0), "compute_s": np.asarray(own_s)}
    (proposal,) = policy.on_tick(view_of(values))
    assert proposal.action == Migrate(group="g3")


def test_rates_follow_from_the_time_of_a_step(monkeypatch, caplog):
    monkeypatch.delenv("TORCHLOOM_PEAK_FLOPS", raising=False)
    work = {"tokens": 100, "samples": 4, "flops": 1e12, "samples_per_s": 7.0}

    def row(samples):
        samples.waiting.extend([(1, 0, work), (2, 2 * 10**9, work)])
        return dict(samples.take(0)[1][1])

    found = row(SampleBuffer())
    assert (found["tokens_per_s"], found["samples_per_s"], found["flops_per_s"]) == (50, 7, 5e11)
    assert "mfu" not in found
    assert not caplog.text
    on_gpu = SampleBuffer()
    on_gpu.gpu = FakeDevice.uuid
    assert "mfu" not in row(on_gpu)
    assert "set TORCHLOOM_PEAK_FLOPS" in caplog.text
    monkeypatch.setenv("TORCHLOOM_PEAK_FLOPS", "1e12")
    assert row(SampleBuffer())["mfu"] == 0.5
    monkeypatch.setenv("TORCHLOOM_PEAK_FLOPS", "fast")
    SampleBuffer()
    assert "need FLOP/s, such as 989e12, was 'fast': ignored" in caplog.text


@pytest.mark.parametrize(
    ("name", "cuda", "uuid"),
    [
        ("NVIDIA H100 80GB HBM3", "13.0", "GPU-00000001-d9cf"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "13.0", ""),
        ("AMD Instinct MI300X", None, ""),
    ],
)
def test_only_a_whole_card_of_nvidia_is_named_by_its_uuid(name, cuda, uuid, monkeypatch):
    card = SimpleNamespace(name=name, uuid="00000001-d9cf")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert CudaDevice(torch.device("cuda:1")).uuid == uuid


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B300 SXM6 AC", 2250e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10G", None),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_the_peak_of_a_card_follows_from_its_name(name, peak):
    assert peak_flops(name) == peak


def test_a_loss_on_the_device_is_read_at_a_later_step(awaiting_loom, device, steps):
    loom, worker = awaiting_loom, awaiting_loom._worker
    loom._device.steps = worker.phases.device = steps
    device.lags = True
    loom.step(loss=OnDevice(3.0), size=OnDevice(0, elements=2), lr=0.1)
    progress_ns = worker.report().progress_ns
    loom.step(loss=OnDevice(4.0))
    report = worker.report()
    assert report.rows == []
    assert report.progress_ns > progress_ns  # it trains
    device.finish()
    loom.step(loss=0.5)
    assert next(row for _, row in worker.samples.take(0)) == {"loss": 3.0, "lr": 0.1}


def test_the_last_row_before_a_pause_is_complete_within_the_pause(
    awaiting_loom, device, steps, monkeypatch
):
    loom, worker = awaiting_loom, awaiting_loom._worker
    loom._device.steps = worker.phases.device = steps
    loom.step()
    device.lags = True
    left_s = iter((0.01, 0.0))

    def left_of_pause():
        device.finish()
        return next(left_s), ""

    monkeypatch.setattr(worker, "left_of_pause", left_of_pause)
    worker.pause("cause")
    worker.has_pending = True
    loom.step(loss=OnDevice(4.0))
    assert [row.get("loss") for _, row in worker.samples.take(0)] == [None, 4.0]


def test_a_metric_on_the_cpu_is_reported_with_its_own_step(awaiting_loom):
    torch = pytest.importorskip("torch")
    loom = awaiting_loom
    loom.measure(torch.nn.Linear(1, 1), torch.optim.SGD([torch.ones(1)], lr=0.1))
    loom.step(loss=torch.tensor(2.5, requires_grad=True))
    assert [row for _, row in loom._worker.samples.take(0)] == [{"loss": 2.5}]
    assert loom._device.steps is None


def test_a_model_that_moves_to_the_gpu_before_the_first_step_is_measured(
    awaiting_loom, device, monkeypatch
):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("torchloom_threadlet.device.source.CudaDevice", lambda _: device)
    model = torch.nn.Linear(1, 1)
    awaiting_loom.measure(model)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
        awaiting_loom.step()
    model(torch.ones(1, 1)).sum().backward()
    awaiting_loom.step()
    awaiting_loom.close()
    [_, (_, row)] = awaiting_loom._worker.samples.take(0)
    assert {"forward_s", "backward_s"} <= row.keys()
