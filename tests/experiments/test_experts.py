"""A worker with experts ends in mid-training: the others go on, with what is left of them."""

import pytest

from experiments.experts.arms import ARMS, MASKED, PEER, REPLICA, holders
from experiments.experts.driver import WORKERS, Kill, run, spread
from experiments.experts.placement import exhaustive, loads_of
from experiments.experts.program import Run
from experiments.experts.worker import Options
from torchloom_core.assignments.experts import place, worker_loads

pytestmark = pytest.mark.integration
STEPS, END = 30, 20
LEFT = {MASKED.name: 6, PEER.name: 8, REPLICA.name: 8}


@pytest.mark.parametrize(
    "arm",
    [pytest.param(arm, marks=() if arm is PEER else pytest.mark.long, id=arm.name) for arm in ARMS],
)
def test_the_death_of_an_experts_host_costs_one_step_and_no_committed_one(arm):
    options = Options(seed=1, steps=STEPS, end_at=("w2", END), mirror_every=arm.mirror_every)
    outcome = run(options, holders(arm), arm.decide)
    assert sorted(outcome.records) == ["w0", "w1", "w3"]
    for record in outcome.records.values():
        assert [step for step, _ in record["commits"]] == list(range(STEPS))
        assert [sum(tokens) for tokens in record["tokens"]] == [1024] * STEPS  # the global batch
    assert outcome.failed_steps() == 1
    assert sum(map(bool, outcome.assignments[-1].experts)) == LEFT[arm.name]


@pytest.mark.long
def test_experts_move_in_mid_training_and_none_is_lost():
    def decide(present, reports, lost):
        loads = loads_of(reports["w0"]["tokens"])
        placed = place(loads, WORKERS, 3, present.experts)
        assert max(worker_loads(loads, placed, WORKERS)) <= 1.05 * exhaustive(loads, 3)
        return placed

    outcome = run(Options(seed=2, steps=12, pause_at=8), spread(), decide)
    assert outcome.failed_steps() == 0
    assert outcome.assignments[0].experts != outcome.assignments[1].experts
    assert all(len(record["commits"]) == 12 for record in outcome.records.values())


@pytest.mark.long
def test_a_killed_worker_of_a_program_with_experts_costs_one_step():
    run = Run(PEER, seed=1, steps=STEPS, kill=Kill("w2", 15, 0.5))
    assert run.failed_steps <= 1
    assert run.experts_left == 8
    assert all(len(run.commits[name]) == STEPS for name in ("w0", "w1", "w3"))
