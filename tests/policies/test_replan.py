"""Planned changes of a pipeline: proposed once they pay, and before a failure."""

import pytest

from tests.policies.pipelines import at_risk, offered
from torchloom_core.plugin import RegroupWorkers
from torchloom_policies.replan import ReplanPolicy


def policy(**options):
    return ReplanPolicy(ReplanPolicy.Options(predictor="trend", **options))


def proposals(view, **options):
    return list(policy(**options).on_tick(view))


def test_a_change_is_proposed_with_what_it_saves_and_costs():
    (one,) = proposals(offered(100.0))
    assert one.action == RegroupWorkers(role="trainer", generation=1)
    assert (one.gain_gpu_s, one.cost_gpu_s) == (0.5 * 100.0 * 4, 0.5 * 4)
    assert "steps 50% shorter, for a stall of 0.5 s" in one.reason


def test_it_waits_until_the_change_has_been_possible_for_some_time():
    assert not proposals(offered(100.0, since_s=95.0))


def test_a_run_that_often_loses_workers_leaves_a_small_gain_alone():
    assert proposals(offered(20.0, losses=1))
    assert not proposals(offered(20.0, losses=40))


def test_one_proposal_is_followed_by_none_for_some_time():
    replan = policy(again_s=60.0)
    assert list(replan.on_tick(offered(100.0)))
    assert not list(replan.on_tick(offered(130.0)))
    assert list(replan.on_tick(offered(161.0)))


@pytest.mark.parametrize("worker", ["w1-0", "w4-0"])
def test_a_worker_that_may_fail_gives_up_its_part_first(worker):
    found = proposals(at_risk(0.8, worker))
    if worker == "w4-0":  # a standby
        assert not found
        return
    (one,) = found
    assert one.action == RegroupWorkers(role="trainer", without=("w1",), generation=1)
    assert one.net_gpu_s > 0
    assert one.confidence == 0.8


def test_workers_that_left_before_stay_out():
    (one,) = proposals(at_risk(0.8, left_out=("w4",)))
    assert one.action.without == ("w1", "w4")


def test_a_stage_whose_layers_no_other_worker_has_stays():
    assert not proposals(at_risk(0.9, workers=("w1", "w1")))


def test_an_unlikely_failure_moves_nothing():
    assert not proposals(at_risk(0.2))
