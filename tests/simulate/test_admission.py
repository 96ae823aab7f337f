"""An admitted standby trains with the groups that the run began with."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
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
    stepping,
)


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


def test_a_group_is_admitted_once():
    model = fleet(stepping(standbys=1), [], 100)
    assert [model.admit("g2"), model.admit("g2"), model.admit("g0")] == ["", "", ""]
    model.advance(50 * S)
    assert model.step == 5
    assert gpu_s(model.finish()) == {"useful": 100 * 3 * GPUS}


def test_only_a_warm_standby_can_be_admitted():
    job = stepping(standbys=1, spares=0, warm_up_s=600.0)
    model = fleet(job, [lost_node(5, "n2", repair_s=100)], 300)
    model.advance(10 * S)
    assert model.admit("g7") == "unknown group 'g7'"
    assert model.admit("g2") == "g2 is not a warm standby"


def test_a_run_that_restarts_as_a_whole_admits_no_group():
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


def test_work_beyond_the_planned_groups_is_counted_apart():
    hits = [lost_node(64, "n0", "n1", "n2", repair_s=1000)]
    model = fleet(stepping(standbys=2), hits, 100)
    model.advance(15 * S)
    for group in ("g2", "g3"):
        model.admit(group)
    result = model.finish()
    # Two train until 20, four until 60; the step to 70 is spoiled, and one is left.
    assert result.buckets["useful"] == (20 * 2 + 40 * 4 + 30 * 1) * GPUS * S
    assert result.surplus == 40 * 2 * GPUS * S
    assert result.goodput == (20 * 2 + 40 * 4 + 30) / 400
    assert result.goodput_as_planned == (60 * 2 + 30) / 400
    assert result.ettr == (60 * 2 + 30) / 200


def test_work_beyond_the_plan_that_is_lost_again_is_not_counted():
    durable = Tier(save_s=0.0, restart_s=15.0, interval_s=30.0)
    job = dataclasses.replace(stepping(standbys=1), durable=durable)
    model = fleet(job, [lost_node(55, "n0", "n1", "n2", repair_s=1000)], 100)
    model.admit("g2")
    result = model.finish()
    assert (result.buckets["useful"], result.surplus) == (30 * 3 * GPUS * S, 30 * GPUS * S)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    groups=st.integers(1, 4),
    standbys=st.integers(0, 4),
    rejoin_s=st.floats(0, 25),
    struck=st.lists(
        st.tuples(st.floats(0, 290), st.integers(1, 7), st.integers(0, 80)), max_size=6
    ),
    admitted=st.lists(st.tuples(st.integers(0, 290_000), st.integers(0, 7)), max_size=6),
)
def test_the_accounts_match_a_count_of_groups_per_step(
    groups, standbys, rejoin_s, struck, admitted
):
    """The group on the first node is never struck, so that steps end every 10 s."""
    job = stepping(groups=groups, standbys=standbys, rejoin_s=rejoin_s)
    hits = [
        lost_node(ts_s, f"n{node}", repair_s=repair_s, name=str(number))
        for number, (ts_s, node, repair_s) in enumerate(sorted(struck))
    ]
    model = fleet(job, hits, 300)
    useful = planned = 0
    for start_s in range(0, 300, 10):
        saved = model.step
        for ts_ms, group in sorted(admitted):
            if start_s <= ts_ms / 1000 < start_s + 10:
                model.advance(ts_ms * S // 1000)
                model.admit(f"g{group}")
        model.advance((start_s + 10) * S - 1)
        count = list(states(model).values()).count("training")
        model.advance((start_s + 10) * S)
        if model.step > saved:
            useful += 10 * count
            planned += 10 * min(count, groups)
    result = model.finish()
    assert result.buckets["useful"] == useful * GPUS * S
    assert result.buckets["useful"] - result.surplus == planned * GPUS * S


# --- two groups that lack a node are put together to one whole ---


def test_of_two_incomplete_groups_one_is_completed():
    job = dataclasses.replace(stepping(groups=3, rejoin_s=5.0), nodes_per_group=2)
    hits = [lost_node(13, "n0", repair_s=500), lost_node(33, "n2", repair_s=500)]
    model = fleet(job, hits, 100)
    assert kinds(model.advance(100 * S), "waiting", "restarted") == [
        (13, "waiting", "g0"),
        (40, "restarted", "g1"),
    ]
    members = {one.worker: (one.node, one.state, one.incarnation) for one in model.workers()}
    assert members["g1-0"] == ("n1", "training", 2)
    assert members["g1-1"] == ("n3", "training", 1)
    assert members["g0-1"][1] == "left"
    result = model.finish()
    assert gpu_s(result)["waiting"] == 20 * GPUS  # what g0 had left, from 13 until 33
    assert sum(result.buckets.values()) == result.wall_ns * result.gpus


def test_a_group_that_gave_its_nodes_away_restarts_on_repaired_ones():
    job = dataclasses.replace(stepping(groups=3, rejoin_s=5.0), nodes_per_group=2)
    hits = [lost_node(13, "n0", repair_s=37), lost_node(33, "n2", repair_s=47)]
    model = fleet(job, hits, 200)
    assert (90, "restarted", "g0") in kinds(model.advance(200 * S), "restarted")
    members = {one.worker: (one.node, one.incarnation) for one in model.workers()}
    assert members["g0-0"][1] == members["g0-1"][1] == 2
    assert {members["g0-0"][0], members["g0-1"][0]} == {"n0", "n2"}


# --- stalls of the other groups ---


def test_other_groups_stall_once_for_all_that_join():
    model = fleet(stepping(standbys=2, rejoin_s=5.0, join_stall_s=3.0), [], 103)
    for group in ("g2", "g3"):
        model.admit(group)
    result = model.finish()
    assert gpu_s(result) == {
        "useful": (10 * 2 + 90 * 4) * GPUS,
        "restart": 10 * 2 * GPUS,
        "migrate": 3 * 4 * GPUS,
    }
    assert result.surplus == 90 * 2 * GPUS * S


def test_other_groups_stall_after_the_step_that_a_death_spoils():
    hits = [lost_node(23, "n0", repair_s=1000)]
    result = fleet(stepping(groups=3, kill_stall_s=4.0), hits, 104).finish()
    assert gpu_s(result) == {
        "useful": (20 * 3 + 70 * 2) * GPUS,
        "lost": (3 * 3 + 7 * 2) * GPUS,
        "detect": 4 * 2 * GPUS,
        "repair": 81 * GPUS,
    }
    assert result.steps_committed == 9


def test_other_groups_stall_before_the_step_after_one_has_left():
    model = fleet(stepping(groups=3, leave_stall_s=4.0, inspect_s=1000.0), [], 104)
    model.advance(25 * S)
    assert model.drain("g0") == ""
    result = model.finish()
    assert gpu_s(result)["migrate"] == 4 * 2 * GPUS
    assert result.steps_committed == 10


def test_a_death_in_a_stall_stalls_the_others_again():
    hits = [lost_node(23, "n0", repair_s=1000), lost_node(32, "n1", repair_s=1000)]
    result = fleet(stepping(groups=3, kill_stall_s=4.0), hits, 108).finish()
    assert gpu_s(result)["detect"] == (2 * 2 + 2 * 1 + 4 * 1) * GPUS
    assert result.buckets["lost"] == (3 * 3 + 7 * 2) * GPUS * S


# --- the fewest that can go on ---


def test_a_run_with_too_few_groups_waits_until_enough_are_back():
    hits = [lost_node(23, "n0", repair_s=100)]
    job = stepping(groups=3, min_groups=3, rejoin_s=7.0)
    model = fleet(job, hits, 200)
    assert kinds(model.advance(200 * S), "waiting", "resumed") == [
        (23, "waiting", "g0"),
        (30, "waiting", ""),
        (130, "resumed", ""),
    ]
    result = model.finish()
    assert gpu_s(result)["waiting"] == 100 * 2 * GPUS
    assert result.steps_committed == 9


def test_a_standby_that_is_admitted_keeps_the_run_above_the_minimum():
    hits = [lost_node(23, "n0", repair_s=1000)]
    model = fleet(stepping(groups=2, standbys=1, min_groups=2), hits, 200)
    model.admit("g2")
    assert model.finish().steps_committed == 19


def test_a_run_that_is_drained_below_the_minimum_waits_after_its_step():
    model = fleet(stepping(groups=2, min_groups=2, inspect_s=50.0), [], 200)
    model.advance(25 * S)
    model.drain("g0")
    assert kinds(model.advance(200 * S), "waiting", "resumed") == [
        (25, "waiting", "g0"),
        (30, "waiting", ""),
        (75, "resumed", ""),
    ]


@pytest.mark.parametrize(("seen_on", "group"), [("n0", "g0"), ("n1", "g0"), ("n3", "g1")])
def test_a_fault_of_the_job_hits_the_rank_that_it_was_recorded_on(seen_on, group):
    hit = replace(job_fault(25), seen_on=(seen_on,))
    model = fleet(dataclasses.replace(stepping(standbys=2), nodes_per_group=2), [hit], 100)
    for standby in ("g2", "g3"):
        model.admit(standby)
    assert kinds(model.advance(100 * S), "down") == [(25, "down", group)]
