"""A pause is in force for all workers or none: its ends, and the notices."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, telemetry
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.wire.decisions import Issue, Notice, Outcome, PauseChanged, Reply, Withdrawal
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Note
from torchloom_core.wire.operations import Pause, Resume
from torchloom_core.wire.requests import StopActions


@pytest.fixture
def run():
    run = Run(make_kernel(config="[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0"))
    for group in ("g0", "g1"):
        run.feed(hello(f"{group}-0", framework="torchft"))
    return run


def pauses(run):
    return [issue.command for issue in of(Issue, run.ask(PauseRun()))]


def held(run):
    """Pause all workers at step 10 and return the verdict that is in force."""
    for command in pauses(run):
        outputs = run.ack(command, step=10)
    (put,) = of(PauseChanged, outputs)
    assert only(Outcome, outputs).result == "done"
    return put.verdict


def is_over(outputs, verdict, why=""):
    assert of(PauseChanged, outputs) == [PauseChanged(verdict="", over=verdict)]
    notices = [notice.text for notice in of(Notice, outputs) if notice.kind == "pause_over"]
    assert notices == ([f"the pause has ended for all: {why}"] if why else [])


def note(worker, why="no Weaver held it", incarnation=1):
    return Note(
        run="run", worker=worker, incarnation=incarnation, kind="pause_over", fields={"why": why}
    )


def undone(outputs, why):
    outcome = only(Outcome, outputs)
    assert (outcome.result, outcome.detail) == ("undone", why)
    assert only(PauseChanged, outputs) == PauseChanged(verdict="", over=outcome.verdict)


def test_a_pause_at_one_step_is_in_force_and_the_outcome_has_its_end(run):
    first, second = pauses(run)
    assert of(PauseChanged, run.ack(first, step=10)) == []
    outputs = run.ack(second, step=10)
    assert only(PauseChanged, outputs).verdict == first.cause == run.kernel.run.pauses.verdict
    assert run.kernel.run.pauses.makings == []
    assert only(Outcome, outputs).detail == (
        "2 workers paused at step 10, until torchloom resume; they resume by themselves if this "
        "Weaver is unreachable for 3 s"
    )


def test_groups_that_paused_at_different_steps_resume(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    outputs = run.ack(second, step=11)
    undone(outputs, "g0 paused at step 10, g1 paused at step 11: undone, all continue")
    assert run.kernel.run.pauses.verdict == ""


def test_a_worker_that_just_resumed_is_paused_again_with_the_others(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.ack(second, "failed")
    assert [command.worker for command in pauses(run)] == ["g0-0", "g1-0"]


def test_a_group_that_does_not_pause_within_a_second_ends_the_pause(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.ack(second, "accepted")
    assert of(Outcome, run.tick(0.9)) == []
    undone(run.tick(0.2), "g0 paused at step 10, g1 is not paused yet: undone, all continue")
    late = run.ack(second, step=11)
    assert not of(PauseChanged, late)
    assert not of(Outcome, late)


def test_a_late_pause_does_not_count_for_any_tick(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.now_ns += 1_400_000_000
    outputs = run.ack(second, step=10)
    undone(outputs, "g0 paused at step 10, g1 paused at step 10, 1.4 s later: undone, all continue")


def test_an_undelivered_pause_is_withdrawn(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    assert only(Withdrawal, run.tick(1.1)).command == second.id


@pytest.mark.parametrize("late_ns", [0, 1_400_000_000])
def test_a_worker_that_cannot_pause_ends_the_pause_at_once(run, late_ns):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.now_ns += late_ns
    undone(run.ack(second, "failed", detail="no"), f"{second.id} failed: no")


def test_a_worker_that_resumed_by_itself_early_ends_the_pause(run):
    first, _ = pauses(run)
    run.ack(first, step=10)
    undone(
        run.feed(note("g0-0")), "g0 paused at step 10, g1 is not paused yet: undone, all continue"
    )


def test_workers_without_torchft_may_pause_at_different_steps():
    run = Run(make_kernel())
    for group in ("g0", "g1"):
        run.feed(hello(f"{group}-0"))
    first, second = pauses(run)
    run.ack(first, step=10)
    outputs = run.ack(second, step=700)
    assert only(Outcome, outputs).result == "done"
    assert only(PauseChanged, outputs).verdict == first.cause


def test_a_resume_ends_the_pause_for_all_at_once(run):
    verdict = held(run)
    outputs = run.ask(ResumeRun())
    is_over(outputs, verdict)
    assert {type(issue.command.do) for issue in of(Issue, outputs)} == {Resume}


def test_a_resume_calls_off_an_incomplete_pause(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.ack(second, "accepted")
    outputs = run.ask(ResumeRun())
    assert only(Reply, outputs).ok
    assert [o.detail for o in of(Outcome, outputs)] == ["resumed before all workers had paused"]
    is_over(outputs, first.cause)


def test_the_kill_switch_ends_the_pause_for_all(run):
    verdict = held(run)
    stopped = "actions are stopped; 0 under way called off"
    assert run.want(StopActions()).text == f"{stopped}; the pause is ended"
    assert run.want(StopActions()).text == stopped
    (over,) = run.all(PauseChanged)[1:]
    assert over == PauseChanged(verdict="", over=verdict)
    assert run.all(Notice)[-1].text == "the pause has ended for all: actions were stopped"


def test_a_paused_run_is_not_paused_again(run):
    held(run)
    assert only(Reply, run.ask(PauseRun())).text == (
        "denied by impossible: the run is already paused: resume it first"
    )


def test_a_run_that_is_being_resumed_is_not_paused_meanwhile(run):
    held(run)
    run.ask(ResumeRun())
    assert only(Reply, run.ask(PauseRun())).text == (
        "denied by impossible: the run is being resumed"
    )


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda run: run.exit("g1-0"), "g1-0 has ended"),
        (lambda run: run.feed(hello("g1-0", incarnation=2)), "g1-0 has ended"),
        (lambda run: run.report("g1-0", step=11), "g1-0 trains again"),
        (
            lambda run: run.feed(note("g1-0", "a pause may last no longer here")),
            "g1-0 continued by itself, a pause may last no longer here",
        ),
        (
            lambda run: (run.tick(5.0), run.feed(telemetry("g0-0", state="paused")), run.tick(6.0))[
                2
            ],
            "g1-0 sent nothing for 11 s",
        ),
    ],
)
def test_a_worker_that_no_longer_pauses_ends_the_pause_for_all(run, happens, why):
    verdict = held(run)
    run.now_ns += 10**9 if "sent nothing" not in why else 0
    is_over(happens(run), verdict, why)


def test_telemetry_from_before_the_pause_does_not_end_it(run):
    verdict = held(run)
    run.feed(telemetry("g0-0", step=10))
    assert of(PauseChanged, run.tick(0.1)) == []
    run.report("g0-0", state="paused")
    run.report("g1-0", state="paused")
    assert run.kernel.run.pauses.verdict == verdict


def test_a_note_of_another_incarnation_does_not_end_it(run):
    verdict = held(run)
    assert run.feed(note("g1-0", incarnation=7)) == []
    assert run.kernel.run.pauses.verdict == verdict


def test_a_group_that_is_drained_in_a_pause_leaves_the_others_paused(run):
    verdict = held(run)
    drain = only(Issue, run.ask(DrainGroup(group="g1"))).command
    run.ack(drain)
    run.exit("g1-0", expected=True)
    run.report("g0-0", state="paused")
    assert run.kernel.run.pauses.verdict == verdict
    is_over(run.exit("g0-0"), verdict, "g0-0 has ended")


def test_a_successor_takes_over_no_pause_and_undoes_an_incomplete_one(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    control = run.kernel.control()
    after = Run(make_kernel(), epoch=2, now_ns=run.now_ns)
    after.feed(Recovered(epoch=3, control=control))
    after.feed(hello("g0-0", framework="torchft", state="paused"))
    after.feed(hello("g1-0", framework="torchft"))
    undone(after.tick(), "the Weaver restarted before all workers had paused")
    assert isinstance(second.do, Pause)
    assert after.kernel.run.pauses.verdict == ""


def test_a_worker_still_paused_by_an_earlier_weaver_is_reported_once():
    run = Run(make_kernel())
    for group in ("g0", "g1"):
        run.feed(hello(f"{group}-0", state="paused"))
    (notice,) = [notice for notice in run.all(Notice) if notice.kind == "pause_over"]
    assert notice.worker == "g0-0"
    assert notice.text == "g0-0 is still in a pause that has ended: it continues by itself"


def test_a_run_that_was_resumed_is_paused_again_as_at_first(run):
    held(run)
    for issue in of(Issue, run.ask(ResumeRun())):
        run.ack(issue.command)
    run.now_ns += 60 * 10**9
    for group in ("g0", "g1"):
        run.report(f"{group}-0", step=11)
    for command in pauses(run):
        outputs = run.ack(command, step=20)
    assert only(Outcome, outputs).detail.startswith("2 workers paused at step 20, ")


def test_an_ack_of_a_pause_that_was_undone_does_not_count_for_the_next(run):
    first, old = pauses(run)
    run.ack(first, step=10)
    run.ack(old, "accepted")
    run.tick(1.1)
    again, new = pauses(run)
    run.ack(again, step=20)
    assert of(Outcome, run.ack(old, step=11)) == []
    assert only(Outcome, run.ack(new, step=20)).result == "done"


@pytest.mark.parametrize("state", ["draining", "left"])
def test_a_worker_that_leaves_in_a_pause_is_not_waited_for(run, state):
    verdict = held(run)
    run.now_ns += 10**9
    run.feed(telemetry("g0-0", state="paused"))
    run.report("g1-0", state=state)
    run.tick(9.0)
    assert run.kernel.run.pauses.verdict == verdict


def test_after_a_pause_there_is_nothing_to_resume(run):
    first, second = pauses(run)
    run.ack(first, step=10)
    run.ack(second, step=11)
    assert not run.kernel.run.pauses.going_on
    for group in ("g0", "g1"):
        run.report(f"{group}-0", step=12)
    assert "no worker is paused" in only(Reply, run.ask(ResumeRun())).text
    held(run)
    for issue in of(Issue, run.ask(ResumeRun())):
        outputs = run.ack(issue.command)
    assert only(Outcome, outputs).detail == "2 workers resumed"
    assert not run.kernel.run.pauses.going_on


def test_the_kill_switch_calls_off_an_incomplete_pause(run):
    run.ack(pauses(run)[0], step=10)
    run.want(StopActions())
    assert only(Outcome, run.outputs).detail == "actions were stopped"


def test_a_resume_before_any_worker_paused_calls_the_pause_off(run):
    pauses(run)
    run.ask(ResumeRun())
    run.tick()
    assert [outcome.detail for outcome in run.all(Outcome)] == [
        "resumed before all workers had paused",
        "the pause was called off",
    ]
