"""A mixture of experts over several workers computes what one worker does, through any change."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from tests.threadlet.gloo_threads import on_ranks
from torchloom_core.floor.errors import AssignmentError, ConfigError
from torchloom_core.wire.assignment import Assignment, Copy, Stage
from torchloom_threadlet.experts import MoELayer, TopKRouter
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.experts.reduction import reduce_dense
from torchloom_threadlet.experts.router import load_balancing_loss

HIDDEN, EXPERTS = 8, 6
WORKERS = ("a", "b", "c")
ONE_EACH = (("a",), ("a",), ("b",), ("b",), ("a",), ("b",))
"""Worker c holds none."""


def expert():
    return nn.Sequential(nn.Linear(HIDDEN, 12), nn.GELU(), nn.Linear(12, HIDDEN))


def assignment(experts, workers=WORKERS, generation=1):
    routes = tuple((Stage(worker, 0, 1),) for worker in workers)
    return Assignment(generation=generation, layers=1, routes=routes, experts=experts)


def layer_of(worker, held, optimizer=Adam, **options):
    made = MoELayer(
        HIDDEN,
        expert,
        lambda weights: optimizer(weights, lr=0.01),
        num_moe_experts=EXPERTS,
        **{"moe_router_topk": 2, "seed": 3, "mirror_every": 2, **options},
    )
    for number in held.experts_of(worker):
        made.create(number)
    return made


def layers_of(held, **options):
    """Return a layer for each worker; made one by one, as random numbers are the process's."""
    return [layer_of(worker, held, **options) for worker in held.workers]


def batch(step, lengths=(5, 0, 9)):
    """Return the tokens of each worker: b has none."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(sum(lengths), HIDDEN, generator=generator).split(list(lengths))


def train(layer, tokens, commit=True, replicas=3):
    """Make one step and return its output."""
    output = layer(tokens)
    output.square().sum().backward()
    layer.reduce()
    reduce_dense([layer.router.weight], layer.peers, replicas)
    if commit:
        with torch.no_grad():
            layer.router.weight -= 0.01 * layer.router.weight.grad
        layer.commit()
    layer.forget()
    layer.router.weight.grad = None
    return output.detach()


def weights(layer):
    return {number: layer.state_of(number) for number in layer.held()}


def trained(held, steps=3, **options):
    """Return the workers' layers after so many steps, and all outputs of each step."""
    layers = layers_of(held, **options)

    def work(rank, group):
        layers[rank].begin(held, Peers(group))
        return [train(layers[rank], batch(step)[rank]) for step in range(steps)]

    return layers, [torch.cat(rows) for rows in zip(*on_ranks(3, work), strict=True)]


@pytest.fixture(scope="module")
def alone():
    """One worker with all experts, on all tokens."""
    route = (Stage("a", 0, 1),)
    held = Assignment(generation=1, layers=1, routes=(route,) * 3, experts=(("a",),) * EXPERTS)
    (layer,) = layers_of(held)
    layer.begin(held, Peers(None))
    outputs = [train(layer, torch.cat(batch(step))) for step in range(3)]
    return layer, outputs


@pytest.mark.parametrize(
    "experts", [ONE_EACH, (("a", "b"), ("a", "c", "b"), ("b",), ("b", "c"), ("a",), ("c",))]
)
def test_several_workers_compute_what_one_does(alone, experts):
    layers, outputs = trained(assignment(experts))
    for ours, theirs in zip(outputs, alone[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert {layer.tokens_per_expert for layer in layers} == {alone[0].tokens_per_expert}
    for number, held in enumerate(experts):
        states = [weights(layers[WORKERS.index(worker)])[number] for worker in held]
        assert all(torch.equal(state, states[0]) for state in states)  # copies: to the bit


def test_the_same_assignment_gives_the_same_bits():
    first, second = (trained(assignment(ONE_EACH))[0] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for number, state in weights(one).items():
            assert torch.equal(state, weights(other)[number])


def test_an_expert_without_a_holder_gets_no_token_and_no_share():
    held = assignment(((), ("a",), ("b",), ("b",), ("a",), ("b",)))
    layers, _ = trained(held)
    assert all(layer.tokens_per_expert[0] == 0 for layer in layers)
    assert sum(layers[0].tokens_per_expert) == 2 * 14
    router = TopKRouter(HIDDEN, EXPERTS, 2)
    exists = torch.tensor([False, True, True, False, True, True])
    routing = router(torch.randn(50, HIDDEN), exists)
    assert not routing.scores[:, ~exists].any()
    torch.testing.assert_close(routing.scores.sum(1), torch.ones(50))
    torch.testing.assert_close(routing.probabilities.sum(1), torch.ones(50))


def test_the_auxiliary_loss_of_even_tokens_is_1_whatever_is_left_out():
    exists = torch.tensor([True, False, True, True])
    scores = exists.float().div(3).expand(6, 4)
    counts = torch.tensor([2, 0, 2, 2])
    assert float(load_balancing_loss(scores, counts, exists, 1)) == pytest.approx(1)


def test_an_expert_that_moves_trains_on_to_the_bit():
    stayed, _ = trained(assignment(ONE_EACH), steps=4)
    layers, _ = trained(assignment(ONE_EACH), steps=2)
    moved = assignment((*ONE_EACH[:2], ("c",), *ONE_EACH[3:]), generation=2)

    def work(rank, group):
        layer = layers[rank]
        peers = Peers(group)
        layer.copy([Copy(2, "b", "c")], WORKERS, peers)
        layer.begin(moved, peers)
        for step in (2, 3):
            train(layer, batch(step)[rank])

    on_ranks(3, work)
    assert layers[1].held() == (3, 5)
    assert torch.equal(layers[2].state_of(2), stayed[1].state_of(2))


def test_a_lost_workers_expert_comes_back_from_a_peers_memory():
    held = assignment(ONE_EACH)
    layers = layers_of(held)

    def work(rank, group):
        layer = layers[rank]
        layer.begin(held, Peers(group))
        for step in range(4):
            train(layer, batch(step)[rank])
            layer.mirror(step)
        return layer.mirrored()

    # a's experts are mirrored by b and c in turn, b's by c and a.
    assert on_ranks(3, work) == [{3: 3}, {0: 2, 4: 2}, {1: 3, 2: 2, 5: 3}]
    last = layers[0].state_of(1)
    later = assignment((("b",), ("c",), ("b",), ("b",), ("b",), ("b",)), ("b", "c"), 2)

    def recover(rank, group):
        layer = layers[rank + 1]
        for number in later.experts_of(later.workers[rank]):
            if number not in layer.held():
                layer.load(number)
        layer.begin(later, Peers(group))

    on_ranks(2, recover)
    assert torch.equal(layers[2].state_of(1), last)
    assert layers[1].held() == (0, 2, 3, 4, 5)
    assert layers[2].mirrored() == {2: 2, 5: 3}


def test_an_attempt_that_is_not_committed_leaves_no_trace():
    layers, _ = trained(assignment(ONE_EACH))
    before = [weights(layer) for layer in layers]

    def work(rank, group):
        layers[rank].begin(assignment(ONE_EACH, generation=2), Peers(group))
        train(layers[rank], batch(9)[rank], commit=False)

    on_ranks(3, work)
    for layer, states in zip(layers, before, strict=True):
        assert all(torch.equal(layer.state_of(number), states[number]) for number in states)


def test_reduced_gradients_can_be_applied_in_a_later_generation():
    layers, _ = trained(assignment(ONE_EACH), optimizer=SGD)
    expected, _ = trained(assignment(ONE_EACH), steps=4, optimizer=SGD)

    def work(rank, group):
        layer = layers[rank]
        layer.begin(assignment(ONE_EACH, generation=2), Peers(group))
        layer(batch(3)[rank]).square().sum().backward()
        layer.reduce()

    on_ranks(3, work)
    for layer, other in zip(layers, expected, strict=True):
        layer.commit()  # the vote's group is gone, others have committed: roll forward
        assert all(torch.equal(state, weights(other)[n]) for n, state in weights(layer).items())


def test_measurements_are_those_of_the_last_committed_step():
    (first, *_), _ = trained(assignment(ONE_EACH))
    tokens = first.tokens_per_expert
    figures = first.measurements()
    assert figures["expert_tokens_max_over_mean"] == pytest.approx(max(tokens) / (28 / 6))
    of_a = tokens[0] + tokens[1] + tokens[4]
    assert figures["worker_tokens_max_over_mean"] == pytest.approx(max(of_a, 28 - of_a) / 14)
    assert first.expert_model_parallel_size == 2


def test_mistakes_are_one_line():
    held = assignment((("a",),) * EXPERTS, ("a",))
    layer = layer_of("b", held)
    with pytest.raises(AssignmentError, match="need an assignment: call begin"):
        layer(torch.randn(1, HIDDEN))
    with pytest.raises(AssignmentError, match="expert 0: a has no state of it"):
        layer.begin(held, Peers(None))
    with pytest.raises(AssignmentError, match="need one that exists, were none"):
        layer.begin(assignment(((),) * EXPERTS, ("a",)), Peers(None))
    with pytest.raises(AssignmentError, match="need 3 ranks and 6 experts, were 1 and 6"):
        layer.begin(assignment(ONE_EACH), Peers(None))
    with pytest.raises(AssignmentError, match="need 0 to 5, was 6"):
        layer.create(6)
    with pytest.raises(ConfigError, match="need 1 <= moe_router_topk <= 6, was 7"):
        layer_of("a", held, moe_router_topk=7)
