"""Restart mode: any failure stops the run, and unsaved work is lost."""

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

EVERY_100 = Tier(save_s=10.0, restart_s=20.0, interval_s=100.0)


def test_work_since_the_last_checkpoint_is_lost():
    job = plain_job(durable=EVERY_100, detect_s=5.0)
    result = fleet(job, [job_fault(150)], 400).finish()
    # Saved at 100-110; 40 s lost; back at 175; saved at 275-285 and 385-395.
    assert gpu_s(result) == {
        "useful": 305 * GPUS,
        "checkpoint": 30 * GPUS,
        "lost": 40 * GPUS,
        "restart": 20 * GPUS,
        "detect": 5 * GPUS,
    }
    assert (result.saves, result.failures) == (3, 1)


def test_a_failure_during_a_checkpoint_loses_its_work():
    result = fleet(plain_job(durable=EVERY_100), [job_fault(105)], 130).finish()
    assert gpu_s(result)["lost"] == 100 * GPUS
    assert result.saves == 0


def test_a_checkpoint_that_ends_as_the_failure_comes_keeps_its_work():
    result = fleet(plain_job(durable=EVERY_100), [job_fault(110)], 130).finish()
    assert "lost" not in gpu_s(result)


def test_a_failure_in_a_restart_begins_it_anew_and_one_in_detection_does_not():
    job = plain_job(durable=EVERY_100, detect_s=5.0)
    in_detection = fleet(job, [job_fault(50), job_fault(53)], 100).finish()
    assert gpu_s(in_detection)["detect"] == 5 * GPUS
    assert in_detection.failures == 1
    in_restart = fleet(job, [job_fault(50), job_fault(65)], 100).finish()
    assert gpu_s(in_restart)["detect"] == 10 * GPUS
    assert gpu_s(in_restart)["restart"] == 30 * GPUS


def test_work_that_is_saved_nowhere_counts_at_the_end():
    assert gpu_s(fleet(plain_job(), [], 100).finish()) == {"useful": 100 * GPUS}


def test_a_fault_of_the_job_comes_back_from_a_local_checkpoint_a_lost_node_does_not():
    local = Tier(save_s=1.0, restart_s=2.0, interval_s=30.0)
    job = plain_job(durable=EVERY_100, local=local)
    soft = fleet(job, [job_fault(50)], 60).finish()
    assert gpu_s(soft)["lost"] == (50 - 31) * GPUS
    assert gpu_s(soft)["restart"] == 2 * GPUS
    hard = fleet(job, [lost_node(50, "n0", repair_s=0)], 60).finish()
    assert gpu_s(hard)["lost"] == 49 * GPUS
    assert gpu_s(hard)["restart"] == 10 * GPUS


def test_a_copy_on_another_node_outlives_one_lost_node_not_several():
    local = Tier(save_s=1.0, restart_s=2.0, interval_s=30.0)
    job = plain_job(groups=2, durable=EVERY_100, local=local, local_has_copies=True)
    one = fleet(job, [lost_node(50, "n0", repair_s=0)], 60).finish()
    assert gpu_s(one)["lost"] == (50 - 31) * 2 * GPUS
    assert gpu_s(one)["restart"] == 2 * 2 * GPUS
    both = fleet(job, [lost_node(50, "n0", "n1", repair_s=0)], 60).finish()
    assert gpu_s(both)["lost"] == 49 * 2 * GPUS


def test_a_node_lost_while_the_job_comes_back_from_a_local_checkpoint_costs_that_as_well():
    local = Tier(save_s=0.0, restart_s=5.0, interval_s=30.0)
    job = plain_job(durable=EVERY_100, local=local)
    result = fleet(job, [job_fault(50), lost_node(52, "n0", repair_s=0)], 60).finish()
    assert gpu_s(result)["lost"] == 50 * GPUS


def test_a_durable_checkpoint_stands_for_the_local_one_that_is_due_with_it():
    local = Tier(save_s=1.0, restart_s=2.0, interval_s=50.0)
    result = fleet(plain_job(durable=EVERY_100, local=local), [], 111).finish()
    assert gpu_s(result)["checkpoint"] == (1 + 10) * GPUS


def test_a_proactive_checkpoint_leaves_the_schedule_as_it_is():
    job = plain_job(durable=EVERY_100, proactive_save_s=3.0)
    model = fleet(job, [job_fault(60)], 1000)
    model.advance(50 * S)
    assert model.save_checkpoint() == ""
    assert model.save_checkpoint() == "the run cannot save: it is in phase save"
    happened = model.advance(200 * S)
    # 50 s of work, 3 s of saving, 7 s lost; back at 80 with 50 s of work to the next one.
    assert kinds(happened, "committed") == [(53, "committed", ""), (140, "committed", "")]
    result = model.finish()
    assert gpu_s(result)["lost"] == 7 * GPUS
    assert result.proactive_saves == 1


def test_a_new_interval_counts_from_the_last_durable_checkpoint():
    model = fleet(plain_job(durable=EVERY_100), [], 1000)
    model.advance(50 * S)
    assert model.set_checkpoint_interval(40.0) == ""
    assert model.set_checkpoint_interval(0.5) == "need seconds >= 1, was 0.5"
    committed = kinds(model.advance(120 * S), "committed")
    assert [ts for ts, *_ in committed] == [60, 110]


def test_a_lost_node_is_replaced_by_a_warm_standby_at_once():
    job = plain_job(groups=2, standbys=1, durable=EVERY_100, provision_s=600.0, warm_up_s=50.0)
    model = fleet(job, [lost_node(10, "n1", repair_s=300)], 400)
    happened = model.advance(200 * S)
    assert kinds(happened, "worker_lost", "restarted") == [
        (10, "worker_lost", "g1"),
        (30, "restarted", ""),
    ]
    assert states(model) == {"g0-0": "training", "g1-0": "gone", "g2-0": "training"}
    assert kinds(model.advance(400 * S), "repaired", "standby_ready") == [
        (310, "repaired", ""),
        (360, "standby_ready", "g1"),
    ]
    replaced = {one.worker: (one.node, one.incarnation) for one in model.workers()}
    assert replaced["g1-0"] == ("n1", 2)


def test_a_cold_spare_is_provisioned_first():
    job = plain_job(groups=2, spares=1, durable=EVERY_100, provision_s=60.0)
    model = fleet(job, [lost_node(10, "n1")], 200)
    model.advance(89 * S)
    assert states(model)["g1-0"] == "gone"
    model.advance(90 * S)
    assert [(one.node, one.incarnation) for one in model.workers()] == [("n0", 1), ("n2", 2)]
    assert gpu_s(model.finish())["restart"] == (60 + 20) * 2 * GPUS


def test_without_a_node_the_run_waits_for_a_repair():
    job = plain_job(groups=2, durable=EVERY_100, detect_s=5.0)
    model = fleet(job, [lost_node(10, "n1", repair_s=100)], 200)
    assert kinds(model.advance(200 * S), "waiting", "repaired", "restarted") == [
        (15, "waiting", "g1"),
        (110, "repaired", ""),
        (130, "restarted", ""),
    ]
    result = model.finish()
    assert gpu_s(result)["waiting"] == 95 * GPUS
    assert gpu_s(result)["repair"] == 100 * GPUS


def test_a_rack_takes_the_standby_with_it():
    job = plain_job(
        groups=2, standbys=1, spares=1, durable=EVERY_100, provision_s=60.0, warm_up_s=300.0
    )
    model = fleet(job, [lost_node(10, "n1", "n2")], 500)
    happened = model.advance(500 * S)
    assert kinds(happened, "restarted") == [(90, "restarted", "")]
    assert model.finish().failures == 1


def test_a_hit_of_other_nodes_does_not_hit_the_job():
    model = fleet(plain_job(), [lost_node(10, "elsewhere")], 100)
    assert model.advance(100 * S) == []
    assert gpu_s(model.finish()) == {"useful": 100 * GPUS}


def test_a_fault_recorded_on_other_nodes_does_not_hit_the_job():
    job = plain_job(groups=2, durable=EVERY_100)
    elsewhere = replace(job_fault(10), seen_on=("elsewhere",))
    here = replace(job_fault(20), seen_on=("n1",))
    model = fleet(job, [elsewhere, here], 100)
    lost = [one for one in model.advance(100 * S) if one.kind == "worker_lost"]
    assert [(one.ts_ns, one.detail) for one in lost] == [(20 * S, "g1-0")]
    assert not elsewhere.strikes({"n0", "n1"})
    assert here.strikes({"n0", "n1"})
    assert job_fault(10).strikes({"n0"})


def test_a_paused_run_waits_and_a_checkpoint_is_ended_first():
    model = fleet(plain_job(durable=EVERY_100), [], 300)
    model.advance(105 * S)
    assert model.pause() == ""
    assert states(model) == {"g0-0": "training"}
    model.advance(150 * S)
    assert states(model) == {"g0-0": "paused"}
    assert model.resume() == ""
    result = model.finish()
    assert gpu_s(result)["waiting"] == 40 * GPUS


def test_steps_are_whole_steps_of_saved_work():
    job = plain_job(step_s=30.0, durable=EVERY_100)
    model = fleet(job, [job_fault(170)], 1000)
    model.advance(100 * S)
    assert model.step == 3
    model.advance(160 * S)
    assert model.step == 5
    model.advance(180 * S)
    assert model.step == 3


def test_a_node_lost_in_detection_makes_it_no_shorter_and_no_longer():
    job = plain_job(groups=2, spares=2, durable=EVERY_100, detect_s=10.0)
    model = fleet(job, [lost_node(50, "n0"), lost_node(54, "n1")], 200)
    assert kinds(model.advance(200 * S), "down", "restarted") == [
        (50, "down", "g0"),
        (80, "restarted", ""),
    ]
    assert model.finish().failures == 2
