"""Roles of one run: what is asked of one concerns no other."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, telemetry
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.decisions import Issue, Judged, Outcome, PauseChanged, Reply
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import Checkpoint, SetKnob
from torchloom_core.wire.requests import ForgetKnob

SETTINGS = "[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0"


def two_roles(config=SETTINGS, **changes):
    """Return a run of two trainers and two rollouts."""
    run = Run(make_kernel(config=config))
    for worker in ("g0-0", "g1-0"):
        run.feed(hello(worker, **changes))
    for worker in ("rollout-0-0", "rollout-1-0"):
        run.feed(hello(worker, role="rollout", **changes))
    return run


@pytest.fixture
def run():
    return two_roles()


def issued(outputs):
    return [issue.command for issue in of(Issue, outputs)]


def refusal(outputs):
    reply = only(Reply, outputs)
    assert not reply.ok
    return reply.text


def paused(run, role=""):
    commands = issued(run.ask(PauseRun(role=role)))
    for command in commands:
        outputs = run.ack(command, step=10)
    assert only(Outcome, outputs).result == "done"
    return {command.worker for command in commands}


def test_a_pause_of_a_role_is_not_for_the_others_and_ends_by_itself_or_with_all(run):
    assert paused(run, "trainer") == {"g0-0", "g1-0"}
    assert paused(run, "rollout") == {"rollout-0-0", "rollout-1-0"}
    assert [one.role for one in run.all(PauseChanged)] == ["trainer", "rollout"]
    text = "role trainer is already paused: resume it first"
    assert text in refusal(run.ask(PauseRun(role="trainer")))
    assert text in refusal(run.ask(PauseRun()))
    resumed = issued(run.ask(ResumeRun(role="trainer")))
    assert {command.worker for command in resumed} == {"g0-0", "g1-0"}
    assert run.kernel.run.pauses.in_force == ["rollout"]
    run.ask(ResumeRun())
    assert run.kernel.run.pauses.in_force == []


def test_a_pause_of_the_whole_run_is_resumed_as_a_whole(run):
    assert len(paused(run)) == 4
    text = "the whole run is paused: resume it without a role"
    assert text in refusal(run.ask(ResumeRun(role="rollout")))
    assert "the run is already paused" in refusal(run.ask(PauseRun(role="rollout")))


def test_a_role_that_nobody_has_is_named_with_its_neighbour(run):
    text = "no worker of role rollouts is training; did you mean rollout?"
    assert text in refusal(run.ask(PauseRun(role="rollouts")))


def test_a_resume_of_all_ends_the_pause_that_a_role_has_not_reached_yet(run):
    run.ask(PauseRun(role="trainer"))
    run.ask(ResumeRun())
    run.tick()
    details = [one.detail for one in run.all(Outcome)]
    assert "resumed before all workers had paused" in details
    assert not run.kernel.run.pauses.going_on


def test_a_fence_of_one_role_does_not_wait_for_that_of_another():
    able = ("fenced_change", "checkpoint", "saves_together")
    run = two_roles(actuators=able)
    first = issued(run.ask(SaveCheckpoint(role="trainer")))
    second = issued(run.ask(SaveCheckpoint(role="rollout")))
    assert [len(first), len(second)] == [2, 2]
    assert not issued(run.ask(SaveCheckpoint()))  # waits for both
    for command in second:
        outputs = run.ack(command, step=7)
    assert only(Outcome, outputs).detail == "saved by 2 workers at step 7"
    for command in first:
        outputs = run.ack(command, step=3)
    assert [type(one.do.do) for one in issued(outputs)] == [Checkpoint] * 4


def test_workers_of_one_role_save_where_another_cannot(run):
    saving = issued(run.ask(SaveCheckpoint(role="rollout")))
    assert [command.worker for command in saving] == ["rollout-0-0", "rollout-1-0"]


def test_a_knob_of_one_name_in_two_roles_is_set_on_the_one_that_is_named(run):
    text = "the roles rollout, trainer have knob lr: name one with --role"
    assert text in refusal(run.ask(ChangeKnob(knob="lr", value=0.2)))
    commands = issued(run.ask(ChangeKnob(knob="lr", value=0.2, role="rollout")))
    assert [one.worker for one in commands] == ["rollout-0-0", "rollout-1-0"]
    for command in commands:
        run.ack(command)
    assert not issued(run.feed(hello("g2-0")))  # a trainer that joins
    (joined,) = issued(run.feed(hello("rollout-2-0", role="rollout")))
    assert joined.do == SetKnob(knob="lr", value=0.2)


def test_each_role_has_a_specification_and_a_desired_value_of_its_own():
    run = two_roles()
    batch = KnobSpec(name="lr", kind="int", low=1, high=64)
    run.feed(hello("rollout-0-0", role="rollout", incarnation=2, knobs=(batch,), values={"lr": 4}))
    run.feed(hello("rollout-1-0", role="rollout", incarnation=2, knobs=(batch,), values={"lr": 4}))
    need = "knob lr: need at most 1, was 8.0"
    assert need in refusal(run.ask(ChangeKnob(knob="lr", value=8, role="trainer")))
    assert only(Reply, run.ask(ChangeKnob(knob="lr", value=8, role="rollout"))).ok
    run.ask(ChangeKnob(knob="lr", value=0.5, role="trainer"))
    kept = {one.role or "trainer": one.value for one in run.kernel.run.desired.snapshot()}
    assert kept == {"rollout": 8, "trainer": 0.5}
    assert not run.want(ForgetKnob(knob="lr")).ok
    assert run.want(ForgetKnob(knob="lr", role="rollout")).ok
    assert [one.value for one in run.kernel.run.desired.snapshot()] == [0.5]


FENCED = KnobSpec(name="lr", kind="float", low=0.0, high=1.0, fence="run")


def test_a_fenced_knob_of_one_role_is_guarded_by_its_own_metric_and_set_again_after_its_restart():
    run = two_roles(knobs=(FENCED,), actuators=("fenced_change",), framework="torchrun")
    workers = ("g0-0", "g1-0", "rollout-0-0", "rollout-1-0")

    def steps(first, last, of_rollouts):
        for index in range(first, last):
            for worker in workers:
                loss = of_rollouts if worker.startswith("rollout") else 1.0
                run.feed(telemetry(worker, {"loss": loss + index % 2 * 0.01}, step=index + 1))
            run.tick()

    steps(0, 12, 2.0)
    guard = Guard(metric="loss", window_s=10.0)
    change = ChangeKnobs(values={"lr": 0.3}, guard=guard, role="trainer")
    commands = issued(run.ask(change))
    assert [one.worker for one in commands] == ["g0-0", "g1-0"]
    for command in commands:
        run.ack(command, step=13)
    steps(12, 26, 50.0)  # that the rollouts' loss rises says nothing of the trainers' change
    assert only(Judged, run.outputs).hurt is False
    for worker in workers:
        run.exit(worker)
    for worker in workers:
        role = "rollout" if worker.startswith("rollout") else "trainer"
        more = {"knobs": (FENCED,), "actuators": ("fenced_change",), "framework": "torchrun"}
        run.feed(hello(worker, role=role, incarnation=2, **more))
    assert [one.worker for one in issued(run.tick())] == ["g0-0", "g1-0"]


@pytest.mark.parametrize(
    "action", [ChangeKnobs(values={"lr": 0.3}), ChangeKnob(knob="lr", value=0.3)]
)
def test_a_fenced_knob_that_only_one_role_has_needs_no_role(action):
    run = two_roles(actuators=("fenced_change",), framework="torchrun", knobs=())
    for worker in ("g0-0", "g1-0"):
        more = {"knobs": (FENCED,), "actuators": ("fenced_change",), "framework": "torchrun"}
        run.feed(hello(worker, incarnation=2, **more))
    assert {one.worker for one in issued(run.ask(action))} == {"g0-0", "g1-0"}
