"""A loop goes on with the batches that an undisturbed run would have had."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torchloom_threadlet.checkpoint.batches import Position, batches
from torchloom_threadlet.checkpoint.json_state import decode, encode
from torchloom_threadlet.checkpoint.state import random_states, set_random_states

DATA = TensorDataset(torch.arange(20))


class Loop:
    """Counts steps as a loom does, and draws random numbers as dropout does."""

    def __init__(self, make, position=None, step=-1):
        self.position, self.step = position or Position(), step
        self.loader = make()

    def run(self, steps, saved=None, at=None):
        found = []
        for step, [batch] in batches(
            self.loader, steps, self.position, lambda: self.step, has_state=False
        ):
            found.append((step, batch.tolist(), round(torch.rand(()).item(), 6)))
            self.step = step
            if step == at:
                tensors = {}
                state = {"position": self.position.state_dict(), "random": random_states()}
                saved.append((json.dumps(encode(state, "rank0", tensors)), tensors))
        return found


def shuffled():
    return DataLoader(DATA, batch_size=3, shuffle=True)


def distributed():
    sampler = DistributedSampler(DATA, 2, 1, shuffle=True)
    return DataLoader(DATA, batch_size=3, sampler=sampler)


@pytest.mark.parametrize("make", [shuffled, distributed])
@pytest.mark.parametrize("at", [0, 2, 6, 9])
def test_a_resumed_loop_has_the_batches_of_an_undisturbed_one(make, at):
    torch.manual_seed(7)
    saved = []
    undisturbed = Loop(make).run(17, saved, at)
    assert [step for step, _, _ in undisturbed] == list(range(17))
    torch.manual_seed(99)
    text, tensors = saved[0]
    state, position = decode(json.loads(text), tensors), Position()
    position.load_state_dict(state["position"])
    set_random_states(state["random"])
    assert Loop(make, position, at).run(17) == undisturbed[at + 1 :]


def test_each_epoch_of_a_distributed_sampler_has_another_order():
    found = Loop(distributed).run(8)
    assert [batch for _, batch, _ in found[:4]] != [batch for _, batch, _ in found[4:]]


def test_a_rewind_leads_back_and_skips_batches():
    torch.manual_seed(7)
    saved, seen = [], []
    loop = Loop(shuffled)
    for step, [batch] in batches(loop.loader, 8, loop.position, lambda: loop.step, has_state=False):
        seen.append((step, batch.tolist()))
        loop.step = step
        if step == 2 and not saved:
            saved.append((loop.position.state_dict(), random_states()))
        if step == 5 and len(seen) == 6:
            loop.position.load_state_dict(saved[0][0])
            set_random_states(saved[0][1])
            loop.step, loop.position.skip = 2, 2
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert seen[6][1] == seen[5][1]


def test_a_loader_without_batches_is_refused():
    loop = Loop(lambda: [])
    with pytest.raises(ValueError, match="need a loader with batches"):
        loop.run(3)


def test_a_loop_without_a_step_says_what_is_missing(caplog):
    found = batches([1, 2, 3], 5, Position(), lambda: -1, has_state=False)
    for _ in range(12):
        next(found)
    [line] = caplog.messages
    assert line == "checkpoints.batches: step 0 was done 5 times: need loom.step() after each step"
