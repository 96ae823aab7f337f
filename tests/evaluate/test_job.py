"""The fleet model and the kernel get the job of the config, or that of the trace."""

import dataclasses
import math

import pytest
from msgspec.structs import replace

from tests.evaluate.traces import writing
from torchloom_core.config.evaluation import Evaluate
from torchloom_core.config.schema import Arbiter, Config, Costs, Weaver
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.goodput.arms import elastic
from torchloom_core.lab.evaluate.goodput.job import (
    INSURANCE_S,
    job_spec,
    kernel_config,
    of_trace,
    paid_nodes,
    reported_keys,
    standbys_of,
)
from torchloom_core.lab.simulate.scenario import JobSpec, Tier
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Job

EVALUATE = Evaluate(
    tick_s=100.0,
    groups=5,
    nodes_per_group=3,
    gpus_per_node=4,
    standbys=2,
    spares=7,
    step_s=11.0,
    proactive_checkpoint_s=12.0,
    local_checkpoint_s=13.0,
    local_interval_s=14.0,
    local_restart_s=15.0,
    rejoin_s=16.0,
    join_stall_s=17.0,
    leave_stall_s=18.0,
    kill_stall_s=19.0,
    provision_s=20.0,
    warm_up_s=21.0,
    inspect_s=22.0,
    repair_s=23.0,
)
COSTS = Costs(
    detect_s=24.0,
    restart_s=25.0,
    migrate_s=26.0,
    checkpoint_s=27.0,
    unsaved_s=28.0,
    replace_s=29.0,
    others_wait_s=30.0,
)
CONFIG = Config(evaluate=EVALUATE, costs=COSTS, arbiter=Arbiter(min_groups=3))
ARM = Arm(name="a", kind="candidate", what="", interval=600.0)

SPEC = JobSpec(
    groups=5,
    nodes_per_group=3,
    gpus_per_node=4,
    standbys=2,
    spares=7,
    recovery="restart",
    step_s=11.0,
    durable=Tier(save_s=27.0, restart_s=25.0, interval_s=600.0),
    local=Tier(save_s=13.0, restart_s=15.0, interval_s=14.0),
    proactive_save_s=12.0,
    detect_s=24.0,
    migrate_s=26.0,
    rejoin_s=16.0,
    provision_s=20.0,
    warm_up_s=21.0,
    inspect_s=22.0,
    min_groups=3,
    join_stall_s=17.0,
    leave_stall_s=18.0,
    kill_stall_s=19.0,
)


def with_job(**changes):
    return replace(CONFIG, evaluate=replace(EVALUATE, **changes))


# --- the fleet model's ---


def test_the_fleet_model_is_given_the_job_as_the_config_has_it():
    assert job_spec(ARM, CONFIG, 1e4) == SPEC
    assert paid_nodes(EVALUATE) == SPEC.nodes == (5 + 2) * 3 + 7


def test_a_local_checkpoint_that_takes_no_time_is_none():
    assert job_spec(ARM, with_job(local_checkpoint_s=0.0), 1e4).local is None
    assert job_spec(ARM, with_job(local_checkpoint_s=0.5), 1e4).local is not None


@pytest.mark.parametrize(("requested", "min_groups"), [(0, 1), (1, 1), (2, 2)])
def test_a_run_has_one_group_at_the_least(requested, min_groups):
    config = replace(CONFIG, arbiter=Arbiter(min_groups=requested))
    assert job_spec(ARM, config, 1e4).min_groups == min_groups


@pytest.mark.parametrize(("standbys", "found"), [(None, (2, 7)), (0, (0, 13)), (4, (4, 1))])
def test_nodes_outside_job_and_standbys_are_spares(standbys, found):
    spec = job_spec(replace(ARM, standbys=standbys), CONFIG, 1e4)
    assert (spec.standbys, spec.spares) == found


def test_all_standbys_include_those_made_of_spares():
    assert standbys_of(elastic(), EVALUATE) == 2 + 7 // 3
    assert job_spec(elastic(), CONFIG, 1e4).spares == 1
    exact = with_job(spares=6)
    assert job_spec(elastic(), exact, 1e4).spares == 0


def test_an_arm_with_more_standbys_than_nodes_is_one_line():
    with pytest.raises(TraceError) as caught:
        job_spec(replace(ARM, standbys=5), CONFIG, 1e4)
    assert str(caught.value) == "arm a: need 15 standby nodes, was 13"


YOUNG_S = math.sqrt(2 * 27.0 * 1e4)


@pytest.mark.parametrize(
    ("interval", "changes", "wanted_s"),
    [
        ("never", {}, math.inf),
        ("never", {"checkpoint_interval_s": 99.0}, math.inf),
        ("first", {}, 3600.0),
        ("first", {"checkpoint_interval_s": 99.0}, 99.0),
        ("base", {"checkpoint_interval_s": 0.5}, 0.5),
        ("base", {"recovery": "per_step"}, INSURANCE_S),
        ("base", {"recovery": "per_step", "checkpoint_interval_s": 99.0}, 99.0),
        ("young", {}, YOUNG_S),
        ("young", {"checkpoint_interval_s": 99.0, "recovery": "per_step"}, YOUNG_S),
        ("young", {"step_s": 5000.0}, 5000.0),
        ("daly", {"step_s": 5000.0, "checkpoint_interval_s": 99.0}, 5000.0),
        ("base", {"step_s": 5000.0}, 5000.0),
        (7.0, {"checkpoint_interval_s": 99.0}, 7.0),
    ],
)
def test_the_interval_is_the_arms_the_configs_or_that_of_a_formula(interval, changes, wanted_s):
    spec = job_spec(replace(ARM, interval=interval), with_job(**changes), 1e4)
    assert spec.durable.interval_s == pytest.approx(wanted_s)


def test_dalys_interval_is_shorter_than_youngs_and_the_default():
    daly, base = (
        job_spec(replace(ARM, interval=name), CONFIG, 1e4).durable.interval_s
        for name in ("daly", "base")
    )
    assert daly == base
    assert YOUNG_S - 27.0 <= daly < YOUNG_S


# --- the kernel's ---


def test_the_kernel_is_given_the_prices_that_follow_from_the_job():
    costs = replace(COSTS, gpus_per_worker=4.0, inspect_s=22.0, repair_s=23.0)
    restarts = kernel_config(ARM, CONFIG, SPEC)
    assert restarts.costs == replace(costs, unsaved_s=300.0, replace_s=20.0, others_wait_s=20.0)
    goes_on = kernel_config(ARM, CONFIG, dataclasses.replace(SPEC, recovery="per_step"))
    assert goes_on.costs == replace(
        costs, detect_s=0.0, restart_s=0.0, unsaved_s=11.0, replace_s=16.0, others_wait_s=0.0
    )


def test_the_kernel_has_the_arms_plugins_and_counts_in_the_ticks_of_the_backtest():
    arm = replace(ARM, policies={"silence": {}}, predictors={"trend": {"level": 1.0}})
    config = replace(CONFIG, policies={"straggler": {}}, predictors={"ewma": {}})
    given = kernel_config(arm, config, SPEC)
    assert (given.policies, given.predictors) == (arm.policies, arm.predictors)
    assert given.weaver == Weaver(
        tick_s=100.0, stale_after_s=300.0, command_deadline_s=300.0, show=()
    )
    patient = replace(config, weaver=Weaver(stale_after_s=301.0, command_deadline_s=302.0))
    weaver = kernel_config(arm, patient, SPEC).weaver
    assert (weaver.stale_after_s, weaver.command_deadline_s) == (301.0, 302.0)
    assert given.evaluate == EVALUATE
    assert given.arbiter == CONFIG.arbiter


# --- the job of the trace, and its report ---


def bundle_of(path, *jobs):
    with writing(path / "a.tltrace", 0, 10**15) as writer:
        for job in jobs:
            writer.add(job)
    return Bundle.open(writer.path)


def test_the_largest_job_of_a_trace_is_taken_and_of_equals_the_last_by_name(tmp_path):
    bundle = bundle_of(
        tmp_path,
        Job(id="x", start_ns=0, groups=9, nodes_per_group=2, gpus_per_node=8, step_s=1.0),
        Job(id="c", start_ns=0, groups=3, nodes_per_group=8, gpus_per_node=16, step_s=2.0,
            checkpoint_s=4.0, restart_s=5.0),
        Job(id="b", start_ns=0, groups=6, nodes_per_group=8, gpus_per_node=8, step_s=3.0),
    )  # fmt: skip
    found = of_trace(Config(), bundle)
    assert found.evaluate == Evaluate(groups=3, nodes_per_group=8, gpus_per_node=16, step_s=2.0)
    assert found.costs == Costs(checkpoint_s=4.0, restart_s=5.0)


def test_another_job_shape_keeps_the_step_time_of_the_trace(tmp_path):
    job = Job(id="x", start_ns=0, groups=9, nodes_per_group=2, step_s=1.5, restart_s=5.0)
    bundle = bundle_of(tmp_path, job)
    for key in ("groups", "nodes_per_group", "gpus_per_node"):
        requested = Evaluate(**{key: 4})
        found = of_trace(Config(evaluate=requested), bundle)
        assert found.evaluate == replace(requested, step_s=1.5)
        assert found.costs == Costs(restart_s=5.0)
    own = Config(evaluate=Evaluate(groups=4, step_s=7.0), costs=Costs(restart_s=8.0))
    assert of_trace(own, bundle) == own


def test_keys_missing_in_the_job_stay_unchanged(tmp_path):
    job = Job(id="x", start_ns=0, groups=0, gpus_per_node=2, restart_s=0.5)
    found = of_trace(Config(), bundle_of(tmp_path, job))
    assert found == Config(evaluate=Evaluate(gpus_per_node=2), costs=Costs(restart_s=0.5))


def test_a_trace_without_a_job_leaves_the_config_as_it_is(tmp_path):
    assert of_trace(CONFIG, bundle_of(tmp_path)) == CONFIG


def test_a_report_does_without_stalls_and_sizes_that_are_0():
    stalls = {"join_stall_s", "leave_stall_s", "kill_stall_s"}
    assert {**reported_keys(Evaluate())}.keys().isdisjoint({*stalls, "allreduce"})
    assert reported_keys(EVALUATE).keys() >= stalls
    assert reported_keys(Evaluate())["local_checkpoint_s"] == 0.0
    assert "state_bytes" not in reported_keys(Costs())
    assert reported_keys(Costs(state_bytes=5.0))["state_bytes"] == 5.0
    assert reported_keys(Costs())["inspect_s"] == 0.0
