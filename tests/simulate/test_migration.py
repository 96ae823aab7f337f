"""Standbys, migrations, spares and cordons."""

from dataclasses import replace

import pytest

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

DURABLE = Tier(save_s=10.0, restart_s=20.0, interval_s=1000.0)
BOTH = pytest.mark.parametrize("recovery", ["restart", "per_step"])


def spared(recovery, **changes):
    costs = {"detect_s": 5.0, "migrate_s": 4.0, "inspect_s": 100.0, "warm_up_s": 30.0} | changes
    return plain_job(groups=2, standbys=1, spares=1, durable=DURABLE, recovery=recovery, **costs)


def migrate(model, group="g1", standby="g2"):
    assert model.join(standby) == ""
    assert model.drain(group) == ""


@BOTH
def test_a_failure_of_a_node_that_was_left_in_time_is_avoided(recovery):
    model = fleet(spared(recovery), [lost_node(80, "n1", repair_s=500)], 1000)
    model.advance(50 * S)
    migrate(model)
    happened = model.advance(100 * S)
    assert kinds(happened, "migrated", "hit_missed") == [
        (50, "migrated", "g1"),
        (80, "hit_missed", ""),
    ]
    result = model.finish()
    assert (result.failures, result.avoided, result.migrations) == (0, 1, 1)
    assert gpu_s(result)["migrate"] == 4 * 2 * GPUS
    assert "lost" not in gpu_s(result)


@BOTH
def test_a_standby_trains_once_it_has_joined_and_its_place_is_refilled(recovery):
    model = fleet(spared(recovery), [], 1000)
    model.advance(50 * S)
    assert states(model)["g2-0"] == "standby"
    assert model.join("g2") == ""
    assert model.join("g2") == ""
    assert states(model) == {"g0-0": "training", "g1-0": "training", "g2-0": "training"}
    assert model.drain("g1") == ""
    assert model.drain("g1") == ""
    assert states(model) == {"g0-0": "training", "g1-0": "left", "g2-0": "training"}
    assert kinds(model.advance(200 * S), "standby_ready") == [(80, "standby_ready", "g1")]
    assert {one.worker: one.node for one in model.workers()} == {
        "g0-0": "n0",
        "g1-0": "n3",
        "g2-0": "n2",
    }
    assert model.finish().migrations == 1


@BOTH
def test_an_impossible_command_returns_the_reason(recovery):
    model = fleet(spared(recovery), [], 1000)
    assert model.join("g0") == "g0 is not a warm standby"
    assert model.join("none") == "unknown group 'none'"
    assert model.drain("none") == "unknown group 'none'"


@BOTH
def test_a_standby_that_drains_is_refilled_and_costs_the_run_nothing(recovery):
    model = fleet(spared(recovery), [], 1000)
    model.advance(10 * S)
    assert model.drain("g2") == ""
    assert states(model)["g2-0"] == "left"
    model.advance(50 * S)
    assert states(model)["g2-0"] == "standby"
    result = model.finish()
    assert gpu_s(result)["useful"] == 1000 * 2 * GPUS
    assert result.migrations == 0


def test_a_group_that_is_drained_during_a_checkpoint_leaves_after_it():
    model = fleet(spared("restart"), [], 2000)
    model.advance(1005 * S)
    migrate(model)
    assert kinds(model.advance(1100 * S), "committed", "migrated", "resumed") == [
        (1010, "committed", ""),
        (1010, "migrated", "g1"),
        (1014, "resumed", ""),
    ]


def test_a_drain_without_a_standby_waits_for_a_node_but_loses_no_work():
    job = plain_job(groups=2, durable=DURABLE, migrate_s=4.0, inspect_s=100.0)
    model = fleet(job, [], 500)
    model.advance(50 * S)
    assert model.drain("g0") == ""
    assert states(model) == {"g0-0": "left", "g1-0": "joining"}
    result = model.finish()
    assert gpu_s(result) == {
        "useful": (500 - 104) * 2 * GPUS,
        "migrate": 4 * 2 * GPUS,
        "waiting": 100 * GPUS,
        "repair": 100 * GPUS,
    }


def test_a_failure_in_the_pause_of_a_migration_costs_as_any():
    model = fleet(spared("restart"), [job_fault(52)], 1000)
    model.advance(50 * S)
    migrate(model)
    result = model.finish()
    assert gpu_s(result)["lost"] == 50 * 2 * GPUS
    assert gpu_s(result)["migrate"] == 2 * 2 * GPUS


@BOTH
def test_a_cordoned_spare_is_used_last(recovery):
    job = plain_job(groups=2, spares=2, durable=DURABLE, recovery=recovery)
    model = fleet(job, [lost_node(10, "n0"), lost_node(20, "n1")], 200)
    model.cordon("n2")
    model.advance(15 * S)
    assert {one.node for one in model.workers()} == {"n3", "n1"}
    model.advance(200 * S)
    assert {one.node for one in model.workers()} == {"n2", "n3"}


@BOTH
def test_a_spare_that_is_uncordoned_is_used_as_any_other(recovery):
    job = plain_job(groups=2, spares=2, durable=DURABLE, recovery=recovery)
    model = fleet(job, [lost_node(10, "n0")], 200)
    model.cordon("n2")
    model.uncordon("n2")
    model.advance(15 * S)
    assert {one.node for one in model.workers()} == {"n2", "n1"}


@BOTH
def test_a_standby_on_a_cordoned_node_is_used_if_nothing_else_is_left(recovery):
    for spares, taken in ((1, "n3"), (0, "n2")):
        job = plain_job(groups=2, standbys=1, spares=spares, durable=DURABLE, recovery=recovery)
        model = fleet(job, [lost_node(10, "n1")], 200)
        model.cordon("n2")
        model.advance(100 * S)
        assert {one.node for one in model.workers() if one.state == "training"} == {"n0", taken}


@BOTH
def test_the_run_takes_nodes_from_a_standby_that_is_not_ready(recovery):
    job = plain_job(
        groups=2, standbys=1, spares=0, durable=DURABLE, recovery=recovery, warm_up_s=10_000.0
    )
    # The standby's node comes back and warms up; then the run loses one.
    hits = [lost_node(10, "n2", repair_s=50), lost_node(100, "n1", repair_s=10_000)]
    model = fleet(job, hits, 1000)
    model.advance(1000 * S)
    assert {one.node for one in model.workers() if one.state == "training"} == {"n0", "n2"}


@BOTH
def test_a_node_that_is_away_at_the_end_is_booked_as_repaired_until_then(recovery):
    job = plain_job(groups=1, spares=2, durable=DURABLE, recovery=recovery)
    model = fleet(job, [lost_node(60, "n1", repair_s=1000), lost_node(90, "n2")], 100)
    buckets = gpu_s(model.finish())
    assert buckets["repair"] == (40 + 10) * GPUS
    assert buckets["spare"] == (60 + 90) * GPUS


def test_a_hit_spare_is_repaired_without_a_failure():
    model = fleet(spared("restart"), [lost_node(10, "n3", repair_s=90)], 1000)
    result = model.finish()
    assert result.failures == 0
    assert gpu_s(result)["repair"] == 90 * GPUS


def test_a_node_struck_again_under_repair_is_away_longer():
    job = plain_job(groups=1, durable=DURABLE)
    hits = [lost_node(10, "n0", repair_s=50), lost_node(40, "n0", repair_s=50)]
    model = fleet(job, hits, 1000)
    assert kinds(model.advance(1000 * S), "repaired") == [(90, "repaired", "")]


def test_a_node_struck_again_under_repair_is_back_no_sooner():
    hits = [lost_node(10, "n0", repair_s=500), lost_node(40, "n0", repair_s=5)]
    model = fleet(plain_job(groups=1, durable=DURABLE), hits, 1000)
    assert kinds(model.advance(1000 * S), "repaired") == [(510, "repaired", "")]


@BOTH
def test_a_failure_that_strikes_the_run_elsewhere_as_well_is_not_avoided(recovery):
    model = fleet(spared(recovery), [lost_node(80, "n0", "n1")], 1000)
    model.advance(50 * S)
    migrate(model)
    result = model.finish()
    assert (result.failures, result.avoided) == (1, 0)


@BOTH
def test_all_workers_of_a_group_that_left_start_anew(recovery):
    job = replace(spared(recovery), nodes_per_group=2, spares=2)
    model = fleet(job, [], 1000)
    model.advance(50 * S)
    migrate(model)
    model.advance(1000 * S)
    assert {one.worker: one.incarnation for one in model.workers()} == {
        "g0-0": 1,
        "g0-1": 1,
        "g1-0": 2,
        "g1-1": 2,
        "g2-0": 1,
        "g2-1": 1,
    }


def test_a_repeated_drain_is_done_once():
    job = plain_job(groups=2, spares=2, durable=DURABLE, inspect_s=100.0)
    model = fleet(job, [], 2000)
    model.advance(1005 * S)
    assert model.drain("g1") == ""
    assert model.drain("g1") == ""
    assert model.finish().migrations == 1


def test_a_group_that_had_its_nodes_back_at_once_is_seen_to_work_again():
    job = plain_job(durable=DURABLE, migrate_s=1.0)
    model = fleet(job, [], 100)
    assert model.drain("g0") == ""
    model.advance(0)
    assert states(model) == {"g0-0": "left"}
    model.advance(1 * S)
    assert states(model) == {"g0-0": "training"}
