"""A stand-by that is admitted trains beside the groups that the run began with."""

import dataclasses

import pytest
from msgspec.structs import replace

from tests.simulate.fleets import (
    GPUS,
    S,
    Tier,
    fleet,
    gpu_s,
    job_fault,
    kinds,
    lost_node,
    plain_job,
    states,
)

NEVER = Tier(save_s=7.0, restart_s=15.0, interval_s=float("inf"))


def stepping(groups=2, **changes):
    return plain_job(groups=groups, recovery="per_step", step_s=10.0, durable=NEVER, **changes)


def test_an_admitted_standby_takes_part_from_the_step_after_it_has_rejoined():
    model = fleet(stepping(standbys=1, rejoin_s=12.0), [], 100)
    model.advance(5 * S)
    assert model.admit("g2") == ""
    assert states(model)["g2-0"] == "joining"
    assert kinds(model.advance(50 * S), "restarted") == [(20, "restarted", "g2")]
    assert states(model)["g2-0"] == "training"
    assert gpu_s(model.finish()) == {
        "useful": (20 * 2 + 80 * 3) * GPUS,
        "restart": 15 * GPUS,
        "spare": 5 * GPUS,
    }


def test_nobody_takes_part_twice():
    model = fleet(stepping(standbys=1), [], 100)
    assert [model.admit("g2"), model.admit("g2"), model.admit("g0")] == ["", "", ""]
    model.advance(50 * S)
    assert model.step == 5
    assert gpu_s(model.finish()) == {"useful": 100 * 3 * GPUS}


def test_only_a_warm_standby_can_be_admitted():
    job = stepping(standbys=1, spares=0, warm_up_s=600.0)
    model = fleet(job, [lost_node(5, "n2", repair_s=100)], 300)
    model.advance(10 * S)
    assert model.admit("g7") == "no group is called 'g7'"
    assert model.admit("g2") == "g2 is no warm stand-by"


def test_a_run_that_restarts_as_a_whole_admits_nobody():
    model = fleet(plain_job(groups=2, standbys=1), [], 100)
    assert model.admit("g2").startswith("a run that restarts as a whole")
    assert states(model)["g2-0"] == "standby"


def test_an_admitted_group_that_fails_is_back_once_its_node_is_repaired():
    job = stepping(standbys=1, rejoin_s=5.0)
    model = fleet(job, [lost_node(23, "n2", repair_s=50)], 200)
    model.admit("g2")
    happened = kinds(model.advance(200 * S), "restarted", "waiting", "down")
    assert happened == [
        (10, "restarted", "g2"),
        (23, "down", "g2"),
        (23, "waiting", "g2"),
        (80, "restarted", "g2"),
    ]
    result = model.finish()
    assert (result.failures, result.buckets["repair"]) == (1, 50 * GPUS * S)


def test_a_group_that_fails_is_replaced_by_a_standby_that_was_not_admitted():
    job = stepping(standbys=2, rejoin_s=5.0)
    model = fleet(job, [lost_node(23, "n0", repair_s=50)], 200)
    model.admit("g2")
    assert kinds(model.advance(60 * S), "restarted") == [
        (10, "restarted", "g2"),
        (30, "restarted", "g3"),
    ]


@pytest.mark.parametrize(("seen_on", "group"), [("n0", "g0"), ("n1", "g0"), ("n3", "g1")])
def test_a_fault_of_the_job_strikes_who_has_the_rank_that_it_was_seen_on(seen_on, group):
    hit = replace(job_fault(25), seen_on=(seen_on,))
    model = fleet(dataclasses.replace(stepping(standbys=2), nodes_per_group=2), [hit], 100)
    for standby in ("g2", "g3"):
        model.admit(standby)
    assert kinds(model.advance(100 * S), "down") == [(25, "down", group)]
