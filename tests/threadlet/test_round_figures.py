"""The metrics of LocalSGD, DiLoCo and DDP with a compressed allreduce over a slow wire."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from torchft import DistributedDataParallel, Optimizer  # noqa: E402
from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: E402

from tests.threadlet.training.groups import train, with_torchft  # noqa: E402
from torchloom_threadlet.compression import CompressedProcessGroup  # noqa: E402
from torchloom_threadlet.throttled import ThrottledProcessGroup  # noqa: E402
from torchloom_threadlet.torchft import attach  # noqa: E402

SIZE = 128
SLOW = {"none": 4e5, "int8": 1e5}
"""Bytes per second, so that a sync takes a third of a second in either mode."""
OF_A_SYNC = {"sent_bytes", "wire_s", "overlap_s", "reductions", "gradient_bytes"}
OF_A_ROUND = {"round_s", "round_steps", "round_wait_s"}


def rows_of(training, mode, *, steps):
    """Return the metrics of the steps of two groups."""

    def body(group, manager, pg):
        torch.manual_seed(0)
        parts = [torch.nn.Linear(SIZE, SIZE) for _ in range(2)]
        loom = attach(group=f"g{group}")
        loom.manage(manager)
        loom.adapter._watch(manager)  # as where there is a Weaver
        model, optimizer = training(manager, parts)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.rand(4, SIZE)).square().sum().backward()
            optimizer.step()
            loom.step()
        return [row for _, row in loom._worker.samples.take(0)]

    def wrapped(gloo):
        return CompressedProcessGroup(ThrottledProcessGroup(gloo, bytes_per_s=SLOW[mode]), mode)

    return train(2, body, wrapped=wrapped)


def ddp(manager, parts):
    model = torch.nn.Sequential(*parts)
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), 1e-3))
    return DistributedDataParallel(manager, model), optimizer


def local_sgd(manager, parts, every):
    model = torch.nn.Sequential(*parts)
    inner = torch.optim.SGD(model.parameters(), 1e-3)
    LocalSGD(manager, model, inner, every).__enter__()
    return model, inner


def diloco(manager, parts, every, delay=0):
    model = torch.nn.Sequential(*parts)
    inner = torch.optim.SGD(model.parameters(), 1e-3)
    outer = [torch.optim.SGD(part.parameters(), 0.7) for part in parts]
    DiLoCo(manager, parts, inner, outer, every, fragment_sync_delay=delay).__enter__()
    return model, inner


@pytest.mark.long
@with_torchft
@pytest.mark.parametrize("mode", ["none", "int8"])
@pytest.mark.parametrize(
    ("training", "steps"),
    [(ddp, 1), (partial(local_sgd, every=3), 3), (partial(diloco, every=6), 3)],
    ids=["DDP", "LocalSGD", "DiLoCo"],
)
def test_a_sync_is_reported_as_a_wait_by_its_own_step_only(training, steps, mode):
    # The biases are too small to be compressed, so each waits for the reductions before it.
    for rows in rows_of(training, mode, steps=3 * steps):
        syncs = rows[steps - 1 :: steps]
        assert [row for row in rows if OF_A_SYNC & set(row)] == syncs
        for row in syncs[1:]:
            takes_s = row["sent_bytes"] / SLOW[mode]
            assert takes_s > 0.1
            assert row["wait_s"] > 0.9 * takes_s
            assert row["compute_s"] < 0.3 * takes_s
        if steps == 1:
            assert not any(OF_A_ROUND & set(row) for row in rows)
            continue
        for place in range(1, len(syncs)):
            row, round_ = syncs[place], rows[steps * place : steps * (place + 1)]
            assert row["round_steps"] == steps
            whole_s = sum(each["step_time_s"] for each in round_)
            assert row["round_s"] == pytest.approx(whole_s, rel=0.1)
            assert row["round_wait_s"] == pytest.approx(sum(each["wait_s"] for each in round_))


@with_torchft
def test_a_delayed_sync_is_reported_completely_at_its_wait():
    for rows in rows_of(partial(diloco, every=8, delay=2), "int8", steps=12):
        assert [set(row) >= OF_A_SYNC for row in rows] == [False, False, False, True] * 3
        for row in rows[3::4]:
            assert row["reductions"] == 2
            assert row["gradient_bytes"] == 4 * (SIZE * SIZE + SIZE)
            assert row["bucket_0_wire_s"] > 0.05
