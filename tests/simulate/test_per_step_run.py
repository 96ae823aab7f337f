"""Per-step mode: a failure costs a step, the other groups go on."""

from tests.simulate.fleets import (
    GPUS,
    S,
    Tier,
    fleet,
    gpu_s,
    job_fault,
    kinds,
    lost_node,
    states,
    stepping,
)


def struck_rank(model):
    return next(one for one, state in states(model).items() if state == "gone")


def test_a_step_in_which_a_group_fails_is_not_committed():
    model = fleet(stepping(groups=4, rejoin_s=12.0), [job_fault(24)], 100)
    model.advance(25 * S)
    assert model.step == 2
    lost = struck_rank(model)
    model.advance(39 * S)
    assert lost in {worker for worker, state in states(model).items() if state == "gone"}
    model.advance(40 * S)
    assert states(model)[lost] == "training"
    result = model.finish()
    # All lose 20-24, three the rest of the step; one is away from 24 to the boundary at 40.
    assert gpu_s(result) == {
        "useful": (20 * 4 + 10 * 3 + 60 * 4) * GPUS,
        "lost": (4 * 4 + 6 * 3) * GPUS,
        "restart": 16 * GPUS,
    }
    assert result.steps_committed == 9


def test_two_failures_in_one_step_lose_it_once():
    hits = [lost_node(21, "n0", repair_s=0), lost_node(25, "n1", repair_s=0)]
    result = fleet(stepping(groups=4, rejoin_s=2.0), hits, 100).finish()
    assert (result.steps_committed, result.failures) == (9, 2)


def test_a_group_that_lacks_a_node_waits_while_the_others_go_on():
    job = stepping(groups=2, rejoin_s=5.0, provision_s=20.0)
    model = fleet(job, [lost_node(5, "n0", repair_s=100)], 200)
    assert kinds(model.advance(200 * S), "waiting", "restarted") == [
        (5, "waiting", "g0"),
        (130, "restarted", "g0"),
    ]
    result = model.finish()
    # At 105 repaired, at 130 provisioned and ready, on a boundary.
    assert gpu_s(result)["useful"] == (120 * 1 + 70 * 2) * GPUS
    assert gpu_s(result)["repair"] == 100 * GPUS
    assert gpu_s(result)["restart"] == 25 * GPUS


def test_a_warm_standby_takes_a_lost_groups_place_without_being_provisioned():
    job = stepping(groups=2, standbys=1, rejoin_s=5.0, provision_s=1000.0)
    model = fleet(job, [lost_node(5, "n0")], 200)
    assert kinds(model.advance(200 * S), "restarted") == [(10, "restarted", "g2")]


def test_a_migration_spoils_no_step():
    job = stepping(groups=2, standbys=1, migrate_s=3.0)
    model = fleet(job, [], 103)
    model.advance(24 * S)
    assert model.join("g2") == ""
    assert model.drain("g0") == ""
    result = model.finish()
    assert result.steps_committed == 10
    assert gpu_s(result)["migrate"] == 3 * 2 * GPUS


def test_a_drain_without_a_standby_leaves_the_others_going_on():
    model = fleet(stepping(groups=2, inspect_s=1000.0), [], 100)
    model.advance(20 * S)
    assert model.drain("g0") == ""
    result = model.finish()
    assert result.steps_committed == 10
    assert gpu_s(result)["useful"] == (20 * 2 + 80) * GPUS


def test_checkpoints_are_saved_after_whole_steps_and_only_with_an_interval():
    saving = Tier(save_s=7.0, restart_s=15.0, interval_s=25.0)
    result = fleet(stepping(groups=4, durable=saving), [], 37 * 3).finish()
    assert (result.saves, result.steps_committed) == (3, 9)
    assert fleet(stepping(groups=4), [], 1000).finish().saves == 0


def test_when_the_last_group_is_lost_all_go_back_to_the_durable_checkpoint():
    saving = Tier(save_s=7.0, restart_s=15.0, interval_s=30.0)
    job = stepping(groups=2, durable=saving, rejoin_s=4.0)
    model = fleet(job, [lost_node(60, "n0", "n1", repair_s=0)], 150)
    model.advance(59 * S)
    assert model.step == 5
    model.advance(61 * S)
    assert model.step == 3
    assert set(states(model).values()) == {"gone"}
    happened = model.advance(150 * S)
    assert {ts for ts, *_ in kinds(happened, "restarted")} == {79}
    result = model.finish()
    assert gpu_s(result)["lost"] == 23 * 2 * GPUS
    assert gpu_s(result)["restart"] == 19 * 2 * GPUS


def test_a_checkpoint_on_demand_stops_all_and_spoils_no_step():
    model = fleet(stepping(groups=4, proactive_save_s=6.0), [], 106)
    model.advance(33 * S)
    assert model.save_checkpoint() == ""
    assert model.save_checkpoint() == "the run cannot save: it is in phase save"
    result = model.finish()
    assert (result.proactive_saves, result.steps_committed) == (1, 10)


def test_a_pause_in_a_step_is_taken_up_where_it_was():
    model = fleet(stepping(groups=4), [], 150)
    model.advance(33 * S)
    model.pause()
    assert set(states(model).values()) == {"paused"}
    model.advance(83 * S)
    model.resume()
    result = model.finish()
    assert result.steps_committed == 10
    assert gpu_s(result)["waiting"] == 50 * 4 * GPUS


def test_a_shorter_interval_saves_at_the_next_step():
    saving = Tier(save_s=7.0, restart_s=15.0, interval_s=1000.0)
    model = fleet(stepping(groups=4, durable=saving), [], 200)
    model.advance(55 * S)
    assert model.set_checkpoint_interval(20.0) == ""
    assert kinds(model.advance(70 * S), "committed") == [(67, "committed", "")]


def test_a_checkpoint_on_demand_excludes_its_current_step():
    job = stepping(groups=1, proactive_save_s=6.0, rejoin_s=1.0)
    model = fleet(job, [lost_node(45, "n0", repair_s=0)], 62)
    model.advance(33 * S)
    assert model.save_checkpoint() == ""
    model.advance(46 * S)
    assert model.step == 3
    # Back at 61, and 1 s into the next step at the end.
    assert gpu_s(model.finish())["useful"] == (30 + 1) * GPUS
