import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import (
    CONFIG,
    JOB,
    candidate,
    scene_of,
    setting_of,
    some_events,
    write,
)
from torchloom_core.floor.errors import StateError
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.goodput import compare
from torchloom_core.lab.evaluate.goodput.arms import without_policies
from torchloom_core.lab.evaluate.goodput.job import job_spec
from torchloom_core.lab.evaluate.goodput.run import StudyTask, simulate
from torchloom_core.lab.evaluate.goodput.study import COSTS, FACTORS, run_study
from torchloom_core.lab.evaluate.parallel import Workforce
from torchloom_core.lab.evaluate.report.findings import findings, warnings
from torchloom_core.lab.evaluate.results import RunResult, Simulation, TraceResults
from torchloom_core.lab.evaluate.run_cache import Runner

SEEDS = 2
QUICK = replace(CONFIG, evaluate=replace(JOB, days=1.0))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    events = some_events(count=40)
    events[::4] = [msgspec.structs.replace(one, follows="unknown") for one in events[::4]]
    return write(tmp_path_factory.mktemp("trace") / "small.tltrace", events)


def study(bundle, folder, *, seeds=SEEDS, progress=lambda done, total: None, **workforce):
    return run_study(
        setting_of(bundle, QUICK),
        [candidate()],
        Runner(folder, RunResult, Workforce(**workforce), progress),
        seeds=seeds,
    )


@pytest.fixture(scope="module")
def simulation(bundle, tmp_path_factory):
    return study(bundle, tmp_path_factory.mktemp("runs"))


def quiet_runner(folder):
    return Runner(folder, RunResult, Workforce(), lambda done, total: None)


def key_of(setting, arm, seed):
    return StudyTask(setting=setting, arm=arm, seed=seed).key


def bytes_of(simulation: Simulation) -> bytes:
    return msgspec.json.encode(simulation)


@pytest.mark.slow
def test_an_interrupted_study_goes_on_where_it_was_and_loses_none(bundle, simulation, tmp_path):
    def interrupt(done, total):
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(bundle, tmp_path / "runs", progress=interrupt)
    saved = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    assert len(saved) >= 8
    again = study(bundle, tmp_path / "runs")
    assert bytes_of(again) == bytes_of(simulation)
    for name, written_ns in saved.items():
        assert (tmp_path / "runs" / name).stat().st_mtime_ns == written_ns


def test_runs_are_played_seed_by_seed_so_that_the_first_show_the_pace_of_all_arms(bundle):
    setting, arms = setting_of(bundle, QUICK), (candidate(), replace(candidate(), name="other"))
    study_tasks = [
        StudyTask(setting=setting, arm=arm, seed=seed) for arm in arms for seed in range(2)
    ]
    assert [study_task.seed for study_task, _ in Workforce().play(study_tasks)] == [
        0,
        0,
        1,
        1,
    ]


def test_a_file_that_was_torn_is_played_again(bundle, tmp_path):
    runner = quiet_runner(tmp_path / "runs")
    setting, arm = setting_of(bundle, QUICK), candidate()
    run = simulate(setting, arm, 0)
    key = key_of(setting, arm, 0)
    runner.save(key, run)
    assert runner.find(key, arm.name) == run
    path = tmp_path / "runs" / f"{key}.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert runner.find(key, arm.name) is None


def test_a_run_has_another_key_once_anything_it_rests_on_is_another(bundle, tmp_path):
    setting, arm = setting_of(bundle, QUICK), candidate()
    other_trace = write(tmp_path / "other.tltrace", some_events(seed=1))
    other_costs = replace(QUICK, costs=replace(QUICK.costs, restart_s=1.0))
    keys = {
        key_of(setting, arm, 0),
        key_of(setting, arm, 1),
        key_of(setting, candidate(interval=600.0), 0),
        key_of(replace(setting, unknown="job"), arm, 0),
        key_of(replace(setting, config=other_costs), arm, 0),
        key_of(setting_of(other_trace, QUICK), arm, 0),
    }
    assert len(keys) == 6
    assert key_of(setting, candidate(name="same", what="by another name"), 0) in keys


class Replacing(msgspec.Struct):
    """A run whose inputs are replaced meanwhile."""

    path: Path
    seed: int = 0
    arm: Arm = candidate(name="a")

    @property
    def key(self):
        return self.path.read_text()

    def play(self):
        self.path.write_text("another")
        return runs_of(0.5)[0]


def test_a_run_with_a_replaced_input_is_not_saved(tmp_path):
    (tmp_path / "model").write_text("one")
    runner = quiet_runner(tmp_path / "runs")
    with pytest.raises(StateError, match="a: need a trace and models that do not change"):
        runner.play([Replacing(tmp_path / "model")])
    assert runner.find("one", "a") is None
    assert runner.find("another", "a") is None


def test_a_trace_that_is_replaced_is_opened_again(tmp_path):
    setting = setting_of(write(tmp_path / "t.tltrace", some_events()), QUICK)
    key, run = key_of(setting, candidate(), 0), simulate(setting, candidate(), 0)
    shutil.rmtree(setting.trace)
    write(Path(setting.trace), some_events(seed=1))
    assert key_of(setting, candidate(), 0) != key
    assert simulate(setting, candidate(), 0) != run


@pytest.mark.slow
def test_many_at_once_give_what_one_by_one_gives(bundle):
    setting = setting_of(bundle, QUICK)
    study_tasks = [StudyTask(setting=setting, arm=candidate(), seed=seed) for seed in range(SEEDS)]
    alone = {study_task.seed: run for study_task, run in Workforce().play(study_tasks)}
    together = {study_task.seed: run for study_task, run in Workforce(jobs=2).play(study_tasks)}
    assert together == alone


@pytest.mark.slow
def test_the_progress_ends_at_the_announced_total(bundle, tmp_path):
    reported = []
    study(bundle, tmp_path, seeds=1, progress=lambda done, total: reported.append((done, total)))
    done, total = reported[-1]
    assert done == total
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(reported))
    assert {total for _, total in reported} == {total}


def test_a_policy_is_compared_with_the_same_job_without_it(bundle, simulation):
    arm = next(a for a in simulation.arms if a.kind == "candidate")
    own = {run.seed: run for run in simulation.runs if run.arm == arm.name}
    setting = setting_of(bundle, QUICK)
    alone = [simulate(setting, without_policies(candidate()), seed) for seed in simulation.seeds]
    gains = [own[run.seed].goodput - run.goodput for run in alone]
    assert arm.versus_without.value == pytest.approx(sum(gains) / SEEDS)
    assert all(run.decisions == 0 and not run.operations.proposed for run in alone)
    assert arm.operations.granted["migrate"] == arm.moves > 0


def test_the_mean_shares_of_the_buckets_add_up_to_one(simulation):
    for arm in simulation.arms:
        assert sum(arm.buckets.values()) == pytest.approx(1.0, rel=1e-9)


def test_failures_of_unknown_cause_are_evaluated_under_both_assumptions(simulation):
    ways = simulation.unknown_follows
    assert set(ways) == {"component", "job"}
    names = {way: [arm.name for arm in arms] for way, arms in ways.items()}
    assert names["component"] == names["job"]
    oracle = {way: next(a for a in arms if a.name == "oracle") for way, arms in ways.items()}
    assert oracle["component"].goodput.value > oracle["job"].goodput.value


def test_every_cost_is_varied_by_every_factor_and_by_one_changes_no_gain(simulation):
    points = {(point.cost, point.factor): point for point in simulation.sensitivity}
    assert set(points) == {(c, f) for c in COSTS for f in FACTORS}
    arm = next(a for a in simulation.arms if a.kind == "candidate")
    assert {points[cost, 1.0].gain.value for cost in COSTS} == {arm.versus_without.value}
    assert len({points["restart_s", factor].gain.value for factor in FACTORS}) > 1


def test_the_break_even_is_price_over_loss(simulation):
    rule = simulation.break_even
    assert rule.precision == pytest.approx(rule.price_gpu_s / rule.loss_gpu_s)
    pause_gpu_s = CONFIG.costs.migrate_s * JOB.groups * 8
    assert rule.price_gpu_s == rule.last_price_gpu_s > pause_gpu_s  # the first is the last one
    assert rule.measured["oracle"] == 1.0


def test_the_break_even_counts_all_that_a_failure_costs_the_work_that_is_not_saved_too(
    bundle, simulation
):
    job = job_spec(
        without_policies(candidate()), QUICK, scene_of(bundle, evaluate=QUICK.evaluate).mtbf_s
    )
    stall_s = QUICK.costs.detect_s + QUICK.costs.restart_s + job.durable.interval_s / 2
    assert simulation.break_even.loss_gpu_s == pytest.approx(
        stall_s * JOB.groups * 8 + JOB.provision_s * 8
    )


def test_only_the_first_seed_keeps_its_timeline(simulation):
    assert {run.seed for run in simulation.runs if run.timeline} == {0}


# --- how arms are held against each other ---


def runs_of(*goodputs: float) -> list[RunResult]:
    return [
        RunResult(
            arm="a", seed=seed, wall_s=1.0, gpus=1, job_gpus=1, buckets={}, goodput=goodput,
            ettr=goodput,
        )
        for seed, goodput in enumerate(goodputs)
    ]  # fmt: skip


def test_a_difference_that_all_seeds_share_has_no_width_though_the_seeds_differ():
    goodputs = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    gain = compare.gain(runs_of(*(g + 0.1 for g in goodputs)), runs_of(*goodputs))
    assert gain.value == pytest.approx(0.1)
    assert gain.high - gain.low == pytest.approx(0.0, abs=1e-12)


def test_a_gain_counts_the_runs_that_were_ahead_and_behind():
    gain = compare.gain(runs_of(0.5, 0.5, 0.9, 0.4), runs_of(*[0.5] * 4))
    assert (gain.ahead, gain.behind) == (1, 1)


def test_an_interval_is_the_same_in_every_thread():
    values = [0.1, 0.5, 0.3, 0.9, 0.2, 0.7]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(compare.interval, [values, values])
    assert first == second
    assert first.low < first.value < first.high


# --- a run that grows ---


@pytest.fixture(scope="module")
def growing(bundle, tmp_path_factory):
    config = replace(QUICK, evaluate=replace(QUICK.evaluate, recovery="per_step", join_stall_s=2.0))
    grows = candidate(
        name="grows", policies={"membership": {"keep_warm": 1}}, predictors={}, standbys="all"
    )
    return run_study(
        setting_of(bundle, config),
        [grows],
        quiet_runner(tmp_path_factory.mktemp("grown")),
        seeds=6,
        vary_costs=False,
    )


def named(simulation, name):
    return next(arm for arm in simulation.arms if arm.name == name)


@pytest.mark.slow
def test_an_elastic_run_trains_on_standbys_and_reports_goodput_as_planned(
    growing,
):
    elastic, per_step = named(growing, "elastic"), named(growing, "per_step")
    assert elastic.buckets["spare"] < 0.2 * per_step.buckets["spare"]
    assert elastic.goodput.value > per_step.goodput.value + 0.2
    assert elastic.as_planned.goodput.value <= 4 / 7
    assert elastic.as_planned.versus_reference.value == pytest.approx(
        elastic.as_planned.goodput.value - named(growing, growing.reference).goodput.value
    )
    assert elastic.ettr.value <= 1.0
    assert elastic.as_planned.goodput.value == pytest.approx(elastic.ettr.value * 4 / 7)


def test_warm_standbys_do_not_train(growing):
    grows, elastic = named(growing, "grows"), named(growing, "elastic")
    assert grows.operations.granted["admit"] < elastic.operations.granted["admit"]
    assert grows.buckets["spare"] > elastic.buckets["spare"]


def test_a_run_that_grows_is_neither_the_reference_nor_measured_by_the_oracle(growing):
    assert named(growing, growing.reference).as_planned is msgspec.UNSET
    assert named(growing, "grows").to_oracle is None
    reported = findings(TraceResults(trace={"failures": 1}, config={}, assumptions=(),
                                 simulation=growing))  # fmt: skip
    assert sum("is between the two" in sentence for sentence in reported) == 2
    assert not any("elastic, with another recovery mode" in sentence for sentence in reported)
    assert warnings(growing) == [one for one in warnings(growing) if "grows" not in one]
