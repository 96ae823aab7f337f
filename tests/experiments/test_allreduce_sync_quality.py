"""What a step is worth by how often ranks synchronise, in the lab of the allreduce."""

import json

import pytest

from experiments.allreduce import sync_quality
from experiments.allreduce.model import Workload
from experiments.allreduce.quality import Learner, Quality, train
from experiments.allreduce.sync_quality import DILOCO, LOCAL_SGD, sync_costs, train_apart

TINY = Workload(width=16, layers=1, context=8, batch=1, learning_rate=0.05, momentum=0.9)
ALONE = ["--width", "16", "--layers", "1", "--context", "8", "--jobs", "1", "--seeds", "1"]


@pytest.fixture
def learner():
    return train(Learner.begin(1, TINY), 10, TINY, 0.01, 2)


@pytest.mark.slow
def test_weights_that_are_averaged_at_every_step_of_sgd_learn_as_summed_gradients_do(learner):
    together = train(learner.changed_to("none"), 20, TINY, 0.01, 2).curve
    apart = train_apart(learner, LOCAL_SGD, 1, 20, TINY)
    assert apart.steps == together.steps
    assert apart.loss == pytest.approx(together.loss, rel=1e-4)


def test_the_loss_stays_until_the_ranks_synchronise(learner):
    curve = train_apart(learner, LOCAL_SGD, 20, 40, TINY)
    _, begun, before, at, after, last = curve.loss
    assert before == begun != at
    assert after == at != last


@pytest.mark.slow
def test_diloco_goes_further_than_the_mean_with_its_momentum(learner):
    mean = train_apart(learner, LOCAL_SGD, 10, 20, TINY).loss
    outer = train_apart(learner, DILOCO, 10, 20, TINY).loss
    assert outer[:2] == mean[:2]
    assert outer[2] != pytest.approx(mean[2], rel=1e-6)


def test_the_cost_of_rounds_is_the_power_by_which_quality_falls():
    rows = [
        Quality(f"{algorithm} {every}", 0.0, 0.0, [0.9 * every**-cost, 0.7 * every**-cost])
        for algorithm, cost in ((LOCAL_SGD, 0.1), (DILOCO, -0.02))
        for every in (4, 16, 64)
    ]
    found = {each.algorithm: each for each in sync_costs(rows, [4, 16, 64])}
    assert found[LOCAL_SGD].sync_cost == pytest.approx(0.1)
    assert found[LOCAL_SGD].by_seed == pytest.approx([0.1, 0.1])
    assert found[DILOCO].sync_cost == pytest.approx(-0.02)


@pytest.mark.slow
def test_both_algorithms_are_measured_and_written(tmp_path):
    out = tmp_path / "sync-quality.json"
    options = ["--before", "10", "--every", "2,5", "--rounds", "4", "--out", str(out)]
    assert sync_quality.main([*options, *ALONE]) == 0
    written = json.loads(out.read_text())
    assert written["stay"] == 20
    assert set(written["sync_cost"]) == {LOCAL_SGD, DILOCO}
    assert [row["mode"] for row in written["rows"][1:3]] == ["local_sgd 2", "local_sgd 5"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--every", "4,x"], "--every: need numbers of steps, was 4,x"),
        (["--every", "4"], "--every: need two steps or more that go into 20, was 4"),
        (["--every", "3,7"], "--every: need two steps or more that go into 35, was 3,7"),
        (["--every", "0,5"], "--every: need two steps or more that go into 25, was 0,5"),
        (["--before", "7"], "--before: need a multiple of 10 steps, was 7"),
    ],
)
def test_invalid_rounds_are_refused_in_one_line(options, line, capsys):
    with pytest.raises(SystemExit):
        sync_quality.main(options)
    assert line in capsys.readouterr().err
