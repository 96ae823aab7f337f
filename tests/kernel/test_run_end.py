"""When the last workers end normally, standbys are drained and desired values dropped."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, three_groups
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Issue, Notice, Outcome, Reply, Verdict
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.operations import Drain, SetKnob
from torchloom_core.wire.requests import ResumeActions, StopActions

NO_REST = "[arbiter]\ncooldown_s = 0\nmax_in_motion_share = 1"


@pytest.fixture
def run() -> Run:
    return three_groups(make_kernel(config=NO_REST))


def end(run: Run, worker: str, status: int | None = 0, *, expected: bool = True) -> None:
    run.feed(
        Exit(run="run", worker=worker, incarnation=1, status=status, expected=expected, step=9)
    )


def dismissed(run: Run) -> list[str]:
    """Return the workers that are drained at the next tick."""
    return [i.command.worker for i in of(Issue, run.tick()) if i.command.do == Drain()]


def test_a_standby_can_be_drained_below_the_minimum_of_groups(run):
    for group in "bc":
        end(run, f"{group}-0", -9, expected=False)
    outputs = run.ask(DrainGroup(group="s"))
    assert only(Verdict, outputs).granted
    (issue,) = of(Issue, outputs)
    assert (issue.command.worker, issue.command.do) == ("s-0", Drain())
    assert only(Outcome, run.ack(issue.command)).detail == "s drained"
    assert "denied by quorum_minimum" in only(Reply, run.ask(DrainGroup(group="a"))).text


def test_a_standby_can_be_drained_when_too_few_groups_train():
    run = three_groups(make_kernel(config="[arbiter]\nmin_groups = 4"))
    assert only(Verdict, run.ask(DrainGroup(group="a"))).rule == "quorum_minimum"
    assert only(Issue, run.ask(DrainGroup(group="s"))).command.worker == "s-0"


def test_a_standby_can_be_drained_at_the_motion_limit():
    run = three_groups(make_kernel())
    run.feed(hello("t-0", state="standby"))
    run.ask(Migrate(group="a"))
    assert only(Verdict, run.ask(DrainGroup(group="b"))).rule == "in_motion_share"
    assert only(Issue, run.ask(DrainGroup(group="t"))).command.worker == "t-0"


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_standby_that_is_being_drained_is_not_used_for_a_migration(run, taken_back):
    run.ask(DrainGroup(group="s"))
    if taken_back:  # it may have reached its worker
        run.want(StopActions())
        run.want(ResumeActions())
    verdict = only(Verdict, run.ask(Migrate(group="a")))
    assert verdict.rule == "impossible"
    assert verdict.reason.startswith("no standby fits a: ")
    run.feed(hello("t-0", state="standby"))
    assert only(Issue, run.ask(Migrate(group="a"))).command.worker == "t-0"


def test_only_a_training_or_standby_group_can_be_drained(run):
    run.report("a-0", state="draining")
    for group, reason in (("a", "group a is not training"), ("x", "no group is called 'x'")):
        verdict = only(Verdict, run.ask(DrainGroup(group=group)))
        assert verdict.rule == "impossible"
        assert verdict.reason.startswith(reason)


def test_a_group_that_is_gone_is_reported_as_ended(run):
    end(run, "b-0", -9, expected=False)
    assert only(Verdict, run.ask(DrainGroup(group="b"))).reason == "group b has ended"
    reason = only(Verdict, run.ask(DrainGroup(group="b-0"))).reason
    assert reason == "no group is called 'b-0'; there are a, b, c, s"


def test_the_last_group_is_not_drained(run):
    for group in "bc":
        end(run, f"{group}-0", -9, expected=False)
    verdict = only(Verdict, run.ask(DrainGroup(group="a")))
    assert verdict.reason == "need at least 1 group left training, would be 0"


def test_a_standby_that_is_about_to_join_is_not_drained(run):
    run.ask(Migrate(group="a"))
    assert only(Verdict, run.ask(DrainGroup(group="s"))).reason == "standby s is about to join"


@pytest.mark.parametrize("status", [0, None, -2, 130])
def test_standbys_are_drained_once_the_last_group_finished_or_was_interrupted(run, status):
    for group in "ab":
        end(run, f"{group}-0", status)
        assert dismissed(run) == []
    end(run, "c-0", status)
    assert dismissed(run) == ["s-0"]
    assert run.all(Notice)[-1].text == (
        "the run is over: its last workers ended normally; standbys drained: s-0"
    )
    assert dismissed(run) == []


@pytest.mark.parametrize(
    ("status", "expected"), [(-9, False), (1, False), (-15, True), (143, True)]
)
def test_standbys_stay_if_the_last_group_crashed_or_was_terminated(run, status, expected):
    for group in "ab":
        end(run, f"{group}-0")
    run.tick()
    end(run, "c-0", status, expected=expected)
    assert dismissed(run) == []


def test_a_crash_in_the_last_tick_keeps_the_run_open(run):
    end(run, "a-0")
    end(run, "b-0", 1, expected=False)
    end(run, "c-0")
    assert dismissed(run) == []


def test_a_joining_or_paused_worker_keeps_the_run_open(run):
    run.feed(hello("s-0", state="joining"))
    run.report("s-0", state="joining")
    for group in "abc":
        end(run, f"{group}-0")
    assert not [notice for notice in of(Notice, run.tick()) if notice.kind == "run_over"]


def test_an_unreachable_worker_does_not_keep_the_run_open(run):
    for worker in ("b-0", "c-0"):
        end(run, worker)
    run.tick(10.5)
    run.feed(hello("d-0"))
    end(run, "d-0")
    assert dismissed(run) == ["s-0"]


def test_a_standby_that_ends_before_training_does_not_end_the_run():
    run = Run(make_kernel())
    for worker in ("s-0", "t-0"):
        run.feed(hello(worker, state="standby"))
    run.exit("s-0", expected=True)
    assert dismissed(run) == []


@pytest.mark.parametrize("text", ["[arbiter]\ndry_run = true", NO_REST])
def test_nothing_is_sent_in_a_dry_run_or_while_actions_are_stopped(text):
    run = three_groups(make_kernel(config=text))
    if "dry_run" not in text:
        run.want(StopActions())
    for group in "abc":
        end(run, f"{group}-0")
    assert dismissed(run) == []


def wanting(run: Run, value: float) -> Run:
    for issue in of(Issue, run.ask(ChangeKnob(knob="lr", value=value))):
        run.ack(issue.command)
    return run


def test_the_desired_values_of_a_finished_job_are_dropped(run):
    wanting(run, 0.02)
    for group in "abc":
        end(run, f"{group}-0")
    notice = only(Notice, run.tick())
    assert notice.text.endswith("; standbys drained: s-0; desired values dropped: lr = 0.02")
    assert run.kernel.control().desired == ()
    assert not any("knob" in key for key in run.stored)
    assert of(Issue, run.feed(hello("a-0", incarnation=2))) == []


def test_after_a_crash_a_desired_value_is_set_again_and_reported(run):
    wanting(run, 0.02)
    for group in "abc":
        end(run, f"{group}-0", -9, expected=False)
    run.tick()
    (issue,) = of(Issue, run.feed(hello("a-0", incarnation=2)))
    assert issue.command.do == SetKnob(knob="lr", value=0.02)
    notice = only(Notice, run.ack(issue.command))
    assert (notice.kind, notice.text) == (
        "wanted",
        "lr = 0.02, desired since 2023-11-14T22:13:20Z, set on a-0",
    )
