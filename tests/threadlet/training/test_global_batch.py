import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchft import DistributedDataParallel, Optimizer

from tests.threadlet.training.groups import train, with_torchft
from torchloom_threadlet.training.global_batch import GlobalBatch, split

SIZES = st.integers(1, 200)
WORKERS = st.integers(1, 12)


@given(size=SIZES, micro_batch=SIZES, workers=WORKERS)
def test_each_sample_of_the_global_batch_is_taken_once(size, micro_batch, workers):
    taken = [
        place
        for rank in range(workers)
        for places, weight in split(size, micro_batch, rank, workers)
        for place in places
        if weight
    ]
    assert taken == list(range(size))


@given(size=SIZES, micro_batch=SIZES, workers=WORKERS)
def test_all_workers_have_equally_many_micro_batches_and_none_is_empty(size, micro_batch, workers):
    shares = [split(size, micro_batch, rank, workers) for rank in range(workers)]
    assert len({len(share) for share in shares}) == 1
    assert all(1 <= len(places) <= micro_batch for share in shares for places, _ in share)
    longest = math.ceil(size / workers)
    assert len(shares[0]) == math.ceil(longest / micro_batch)


@given(size=SIZES, micro_batch=SIZES, workers=WORKERS, seed=st.integers(0, 99))
def test_the_mean_over_workers_is_the_gradient_of_the_mean_loss(size, micro_batch, workers, seed):
    torch.manual_seed(seed)
    inputs, targets = torch.randn(size, 3).double(), torch.randn(size).double()

    def gradient(parts):
        weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
        for places, weight in parts:
            rows = list(places)
            (weight * ((inputs[rows] @ weights - targets[rows]) ** 2).mean()).backward()
        return weights.grad

    whole = gradient([(range(size), 1.0)])
    shares = [gradient(split(size, micro_batch, rank, workers)) for rank in range(workers)]
    torch.testing.assert_close(torch.stack(shares).mean(dim=0), whole)


@given(samples=SIZES, size=SIZES, seed=st.integers(0, 99))
def test_each_sample_comes_once_an_epoch_also_where_steps_straddle_epochs(samples, size, seed):
    batch = GlobalBatch(samples, size, 8, seed=seed)
    steps = 2 * samples // size + 1
    rows = torch.cat([batch.rows(step) for step in range(steps)])
    for epoch in range(len(rows) // samples):
        seen = rows[epoch * samples : (epoch + 1) * samples]
        assert sorted(seen.tolist()) == list(range(samples))


def test_the_workers_of_an_fsdp_group_share_the_groups_part():
    parts = [
        part
        for group in range(3)
        for rank in range(2)
        for part in GlobalBatch(100, 50, 4, group_rank=rank, group_size=2).share(7, group, 3)
    ]
    rows = torch.cat([part.rows for part in parts if part.weight])
    assert rows.tolist() == GlobalBatch(100, 50, 4).rows(7).tolist()
    assert sum(part.weight for part in parts) == pytest.approx(6)


def test_a_resized_batch_continues_where_the_last_one_ended_also_on_a_joiner():
    batch = GlobalBatch(1000, 10, 5, seed=3)
    stream = [batch.rows(step) for step in range(4)]
    batch.resize(17, step=4)
    joiner = GlobalBatch(1000, 10, 5)
    joiner.load_state_dict(batch.state_dict())
    stream += [joiner.rows(step) for step in (4, 5)]
    assert torch.equal(torch.cat(stream), GlobalBatch(1000, 74, 5, seed=3).rows(0))
    assert joiner.size == 17


@pytest.mark.parametrize("name", ["samples", "size", "micro_batch"])
def test_a_size_below_one_is_refused(name):
    sizes = {"samples": 10, "size": 5, "micro_batch": 2}
    with pytest.raises(ValueError, match=f"need {name} >= 1, was 0"):
        GlobalBatch(**sizes | {name: 0})
    batch = GlobalBatch(**sizes)
    with pytest.raises(ValueError, match="need size >= 1, was -1"):
        batch.resize(-1, step=0)
    assert batch.size == 5


@with_torchft
@pytest.mark.parametrize("async_quorum", [False, True])
def test_torchft_groups_train_like_one_process_with_the_whole_batch(async_quorum):
    torch.manual_seed(0)
    images, labels = torch.randn(60, 8), torch.randint(4, (60,))
    start = nn.Linear(8, 4).state_dict()

    def build():
        model = nn.Linear(8, 4)
        model.load_state_dict(start)
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    models = [build() for _ in range(3)]

    def states(group):
        model, _ = models[group]

        def load(state):
            model.load_state_dict(state["model"])

        return lambda: {"model": model.state_dict()}, load

    def body(group, manager, pg):
        model, inner = models[group]
        parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
        batch = GlobalBatch(len(images), 23, 3)
        reduced = []
        allreduce = pg.allreduce
        pg.allreduce = lambda *args: (reduced.append(manager.current_step()), allreduce(*args))[1]
        while manager.current_step() < 6:
            optimizer.zero_grad()
            for part in batch.parts(manager, parallel):
                loss = nn.functional.cross_entropy(parallel(images[part.rows]), labels[part.rows])
                (part.weight * loss).backward()
            optimizer.step()
        assert reduced == list(range(6))  # once per step, despite three micro-batches
        return [parameter.detach().clone() for parameter in model.parameters()]

    trained = train(3, body, states=states, async_quorum=async_quorum)

    model, inner = build()
    batch = GlobalBatch(len(images), 23, 23)
    for step in range(6):
        inner.zero_grad()
        rows = batch.rows(step)
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        inner.step()
    for group in trained:
        torch.testing.assert_close(group, list(model.parameters()), rtol=1e-5, atol=1e-6)
        assert all(map(torch.equal, group, trained[0]))
