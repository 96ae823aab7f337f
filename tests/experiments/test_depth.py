import copy

import pytest
import torch
from torch import nn
from torchft import DistributedDataParallel, Optimizer

from experiments.depth.stack import Depth, Stack
from tests.threadlet.training.groups import train, with_torchft

INPUTS = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 4


def build(depth):
    stack = Stack(8, 16, 4, depth)
    return stack, Depth(stack, torch.optim.AdamW)


def run(stack, depth, steps):
    for _ in range(steps):
        depth.optimizer.zero_grad()
        nn.functional.cross_entropy(stack(INPUTS), LABELS).backward()
        depth.optimizer.step()


def weights(stack):
    return torch.cat([parameter.detach().flatten() for parameter in stack.parameters()])


def test_a_stack_computes_to_the_bit_what_it_did_before_it_grew():
    stack, depth = build(2)
    run(stack, depth, 5)
    before = stack(INPUTS)
    depth.set(5)
    assert depth.get() == 5
    assert torch.equal(stack(INPUTS), before)
    run(stack, depth, 5)
    assert stack.blocks[4].out.weight.norm() > 0


def test_the_optimizer_keeps_its_state_and_new_blocks_take_its_settings():
    stack, depth = build(1)
    depth.optimizer.param_groups[0]["lr"] = 0.007
    run(stack, depth, 3)
    before = copy.deepcopy(depth.optimizer.state_dict()["state"])
    depth.set(3)
    after = depth.optimizer.state_dict()
    assert str(after["state"]) == str(before)
    assert [group["lr"] for group in after["param_groups"]] == [0.007, 0.001, 0.007, 0.007]
    run(stack, depth, 2)
    assert depth.optimizer.state[stack.first.weight]["step"] == 5
    assert depth.optimizer.state[stack.blocks[2].out.weight]["step"] == 2


def test_a_block_that_goes_takes_its_group_and_state_along():
    stack, depth = build(3)
    run(stack, depth, 2)
    depth.set(1)
    assert len(depth.optimizer.param_groups) == 2
    assert len(depth.optimizer.state) == len(list(stack.parameters()))
    run(stack, depth, 1)


def test_a_depth_below_nothing_is_refused():
    _, depth = build(2)
    with pytest.raises(ValueError, match="need depth >= 0, was -1"):
        depth.set(-1)
    assert depth.get() == 2


def test_a_joiner_that_is_told_the_depth_first_can_take_over_the_rest():
    stack, depth = build(2)
    run(stack, depth, 2)
    depth.set(4)
    run(stack, depth, 2)
    model, optimizer = copy.deepcopy((stack.state_dict(), depth.optimizer.state_dict()))
    joined, joined_depth = build(2)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        joined.load_state_dict(model)
    joined_depth.set(4)
    joined.load_state_dict(model)
    joined_depth.optimizer.load_state_dict(optimizer)
    run(stack, depth, 3)
    run(joined, joined_depth, 3)
    assert torch.equal(weights(stack), weights(joined))


@with_torchft
def test_torchft_groups_that_grow_and_shrink_at_one_step_stay_equal():
    replicas = [build(1) for _ in range(2)]

    def states(group):
        stack, depth = replicas[group]

        def load(state):
            stack.load_state_dict(state["model"])
            depth.optimizer.load_state_dict(state["optimizer"])

        return (
            lambda: {"model": stack.state_dict(), "optimizer": depth.optimizer.state_dict()},
            load,
        )

    def body(group, manager, pg):
        stack, depth = replicas[group]
        optimizer = Optimizer(manager, depth.optimizer)
        parallel, losses = DistributedDataParallel(manager, stack), []
        while manager.current_step() < 30:
            if manager.current_step() in (10, 20):
                depth.set(4 if manager.current_step() == 10 else 2)
                parallel = DistributedDataParallel(manager, stack)
            optimizer.zero_grad()
            half = slice(group, None, 2)
            loss = nn.functional.cross_entropy(parallel(INPUTS[half]), LABELS[half])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return weights(stack), losses

    (first, losses), (second, _) = train(2, body, states=states)
    assert torch.equal(first, second)
    assert len(losses) == 30
    assert losses[-1] < losses[0]
