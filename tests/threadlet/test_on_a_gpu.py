"""Time and metrics on a real GPU: against the profiler, in CUDA graphs, without synchronisation."""

import pytest

torch = pytest.importorskip("torch")

from torchloom_threadlet.device.source import CudaDevice  # noqa: E402
from torchloom_threadlet.device.steps import DeviceSteps  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STEPS = 10


def rows_of(loom):
    return [row for _, row in loom._worker.samples.take(0)]


def test_own_time_is_within_5_percent_of_the_profilers():
    device = torch.device("cuda", torch.cuda.current_device())
    steps = DeviceSteps(CudaDevice(device))
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)])
    model = model.to(device, torch.bfloat16)
    batch = torch.rand(8192, 4096, device=device, dtype=torch.bfloat16)
    rows = []

    def train():
        for _ in range(STEPS):
            steps.begin_step()
            model(batch).square().mean().backward()
            steps.begin("allreduce")
            steps.end("allreduce")
            steps.end_step()
            rows.append(steps.read_later({}))

    train()
    torch.cuda.synchronize()
    rows.clear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        train()
        torch.cuda.synchronize()
    steps.read()
    kernels_s = sum(each.self_device_time_total for each in profile.key_averages()) / 1e6
    assert sum(row["compute_s"] for row in rows) == pytest.approx(kernels_s, rel=0.05)


def test_a_step_never_synchronises(awaiting_loom, caplog):
    loss = torch.ones((), device="cuda")
    awaiting_loom.step(loss=loss, wait_s=0.0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(STEPS):
            loss = loss + number
            assert awaiting_loom.step(loss=loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    awaiting_loom.step()
    assert [row["loss"] for row in rows_of(awaiting_loom)[: STEPS + 1]] == [
        1.0 + sum(range(number)) for number in range(STEPS + 1)
    ]
    assert caplog.messages == []


def test_a_cuda_graph_is_captured_and_each_replays_loss_is_reported(awaiting_loom, caplog):
    awaiting_loom.step(loss=torch.zeros((), device="cuda"))
    loss, graph = torch.zeros((), device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        awaiting_loom._worker.phases.begin("allreduce")
        loss += 1
        awaiting_loom._worker.phases.end("allreduce")
    for _ in range(STEPS):
        graph.replay()
        awaiting_loom.step(loss=loss)
    torch.cuda.synchronize()
    awaiting_loom.step()
    rows = rows_of(awaiting_loom)[: STEPS + 1]
    assert [row["loss"] for row in rows] == [float(number) for number in range(STEPS + 1)]
    assert caplog.messages == []
