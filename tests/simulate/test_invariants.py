"""Invariants of every run, under any failures and commands."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
from tests.simulate.fleets import S, Tier, fleet, lost_node, names, plain_job
from torchloom_core.lab.simulate.scenario import Hit, JobSpec

pytestmark = pytest.mark.slow

END_S = 3000

seconds = st.one_of(
    st.just(0.0), st.integers(1, 400).map(float), st.floats(0.001, 400.0, allow_nan=False)
)
intervals = st.one_of(st.just(float("inf")), st.floats(1.0, 2000.0))
tiers = st.builds(Tier, save_s=seconds, restart_s=seconds, interval_s=intervals)

jobs = st.builds(
    JobSpec,
    groups=st.integers(1, 4),
    nodes_per_group=st.integers(1, 3),
    gpus_per_node=st.just(8),
    standbys=st.integers(0, 2),
    spares=st.integers(0, 3),
    recovery=st.sampled_from(["restart", "per_step"]),
    step_s=st.floats(0.5, 100.0),
    durable=tiers,
    local=st.none() | tiers,
    proactive_save_s=seconds,
    detect_s=seconds,
    migrate_s=seconds,
    rejoin_s=seconds,
    provision_s=seconds,
    warm_up_s=seconds,
    inspect_s=seconds,
    min_groups=st.integers(1, 5),
    join_stall_s=seconds,
    leave_stall_s=seconds,
    kill_stall_s=seconds,
)


@st.composite
def scenes(draw):
    """Return a job, hits in time order, and commands with their times."""
    job = draw(jobs)
    nodes = names(job)
    some = st.lists(st.sampled_from([*nodes, "elsewhere"]), max_size=3, unique=True)
    times = draw(st.lists(st.integers(0, END_S * S), max_size=12).map(sorted))
    hits = []
    for number, ts_ns in enumerate(times):
        struck = tuple(draw(some))
        hits.append(
            Hit(
                id=f"hit-{number}",
                ts_ns=ts_ns,
                nodes=struck,
                follows="component" if struck else "job",
                repair_ns=draw(st.integers(0, 1000 * S)),
            )
        )
    groups = [f"g{index}" for index in range(job.groups + job.standbys)]
    command = st.one_of(
        st.tuples(st.sampled_from(["join", "admit", "drain"]), st.sampled_from(groups)),
        st.tuples(st.just("migrate"), st.sampled_from(groups)),
        st.tuples(st.sampled_from(["cordon", "uncordon"]), st.sampled_from(nodes)),
        st.tuples(st.just("set_checkpoint_interval"), st.floats(1.0, 1000.0)),
        st.tuples(st.sampled_from(["save_checkpoint", "pause", "resume"])),
    )
    commands = draw(
        st.lists(st.tuples(st.integers(0, END_S * S), command), max_size=10).map(
            lambda all_: sorted(all_, key=lambda one: one[0])
        )
    )
    return job, hits, commands


def obey(model, what, *argument):
    if what == "migrate":
        warm = [one.group for one in model.workers() if one.state == "standby"]
        return [model.join(warm[0]) if warm else "none", model.drain(*argument)]
    return getattr(model, what)(*argument)


def play(job, hits, commands, until_ns=END_S * S):
    """Return the model, everything that happened, and what each command was answered."""
    model = fleet(job, hits, END_S)
    happened, answers = [], []
    for ts_ns, command in commands:
        if ts_ns > until_ns:
            break
        happened += model.advance(ts_ns)
        answers.append((obey(model, *command), model.step, model.workers()))
    happened += model.advance(until_ns)
    return model, happened, answers


@settings(max_examples=examples(300), deadline=None)
@given(scenes())
def test_the_buckets_add_up_and_none_is_negative(scene):
    job, *_ = scene
    model, happened, _ = play(*scene)
    result = model.finish()
    assert sum(result.buckets.values()) == result.wall_ns * result.gpus
    assert all(gpu_ns >= 0 for gpu_ns in result.buckets.values())
    floats = sum(gpu_ns / S for gpu_ns in result.buckets.values())
    assert abs(floats - result.wall_s * result.gpus) <= 1e-9 * result.wall_s * result.gpus
    assert result.ettr <= 1.0
    assert 0 <= result.surplus <= result.buckets["useful"]
    if not any(command[0] == "admit" for _, command in scene[2]):
        assert result.surplus == 0
    assert result.gpus == 8 * job.nodes
    if job.recovery == "restart":
        step_gpu_ns = result.job_gpus * round(job.step_s * S)
        assert result.buckets["useful"] // step_gpu_ns == result.steps_committed
    times = [one.ts_ns for one in happened]
    assert times == sorted(times)


@settings(max_examples=examples(150), deadline=None)
@given(scenes())
def test_no_node_is_in_two_places_and_every_worker_has_one_state(scene):
    job, *_ = scene
    model, *_ = play(*scene)
    members = model.workers()
    assert len({one.worker for one in members}) == len(members)
    at_work = [one.node for one in members if one.state in ("training", "standby", "paused")]
    assert len(at_work) == len(set(at_work))
    assert len(members) == (job.groups + job.standbys) * job.nodes_per_group


@settings(max_examples=examples(100), deadline=None)
@given(scenes())
def test_the_same_inputs_give_the_same_run(scene):
    first, happened, answers = play(*scene)
    again, happened_again, answers_again = play(*scene)
    assert (happened, answers) == (happened_again, answers_again)
    assert first.finish() == again.finish()


@settings(max_examples=examples(100), deadline=None)
@given(scenes(), st.lists(st.integers(0, END_S * S), max_size=20))
def test_looking_more_often_changes_nothing(scene, looks):
    job, hits, commands = scene
    once, happened, _ = play(job, hits, commands)
    looking = sorted([*commands, *((ts, None) for ts in looks)], key=lambda one: one[0])
    model = fleet(job, hits, END_S)
    seen = []
    for ts_ns, command in looking:
        seen += model.advance(ts_ns)
        model.workers()
        if command is not None:
            obey(model, *command)
    seen += model.advance(END_S * S)
    assert seen == happened
    assert model.finish() == once.finish()


@settings(max_examples=examples(150), deadline=None)
@given(scenes(), st.lists(st.integers(0, END_S * S), min_size=1, max_size=20))
def test_reading_the_workers_earlier_does_not_change_them(scene, looks):
    job, hits, commands = scene
    looking, late = fleet(job, hits, END_S), fleet(job, hits, END_S)
    until_ns = max(looks)
    sent = [(ts, command) for ts, command in commands if ts <= until_ns and command[0] != "migrate"]
    for ts_ns, command in sorted([*sent, *((ts, None) for ts in looks)], key=lambda one: one[0]):
        for model in (looking, late):
            model.advance(ts_ns)
            if command is not None:
                obey(model, *command)
        before = looking.workers()
    assert before == late.workers()


def shifted(hits, now_ns, shift_ns):
    """Return the same hits until a moment, and others after it."""
    return [
        hit if hit.ts_ns <= now_ns else replace(hit, ts_ns=hit.ts_ns + shift_ns, repair_ns=1)
        for hit in hits
    ]


@settings(max_examples=examples(150), deadline=None)
@given(scenes(), st.integers(0, END_S * S), st.integers(1, 100 * S))
def test_another_future_leaves_the_past_as_it_was(scene, now_ns, shift_ns):
    job, hits, commands = scene
    model, happened, answers = play(job, hits, commands, now_ns)
    other = shifted(hits, now_ns, shift_ns)
    changed, happened_then, answers_then = play(job, other, commands, now_ns)
    assert (happened, answers) == (happened_then, answers_then)
    assert (model.workers(), model.step) == (changed.workers(), changed.step)


def test_another_future_is_seen_as_soon_as_it_has_come():
    """Else the test above would hold of a future that is none, or of a run that nothing strikes."""
    job = plain_job(groups=2, spares=1)
    hits = [lost_node(at_s, "n0", repair_s=50) for at_s in (100, 500)]
    other = shifted(hits, 300 * S, 20 * S)
    assert [hit.ts_ns // S for hit in other] == [100, 520]
    at_300, at_510 = (
        [play(job, of, [], until_s * S)[1] for of in (hits, other)] for until_s in (300, 510)
    )
    assert at_300[0] == at_300[1] != []
    assert at_510[0] != at_510[1]
