"""Suspend and resume in the kernel: all workers or none, whatever ends or restarts meanwhile."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, node_agent, of, only, telemetry
from tests.kernel.test_recovery import succeed
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.wire.decisions import Issue, Notice, Outcome, Verdict
from torchloom_core.wire.operations import SUSPENDED
from torchloom_core.wire.suspensions import SuspensionChanged

WORKERS = ("a-0", "b-0")
CAN = ("drain", "fenced_change", "store", "park", "freeze")
WAITS = (*CAN, SUSPENDED)


@pytest.fixture
def run():
    run = Run(make_kernel())
    for worker in WORKERS:
        run.feed(hello(worker, actuators=CAN))
    return run


def sent(outputs):
    """Return the commands of the outputs by verb; a fenced change by what it does."""
    found = {}
    for issue in of(Issue, outputs):
        do = getattr(issue.command.do, "do", issue.command.do)
        found.setdefault(do.__struct_config__.tag, []).append(issue.command)
    return found


def answer(run, commands, status="applied", marks=None):
    """Have workers apply the commands, after a hello with their marks."""
    outputs = []
    for command in commands:
        if marks is not None and status == "applied":
            state = "paused" if SUSPENDED in marks else "training"
            run.feed(hello(command.worker, actuators=marks, state=state))
        outputs += run.ack(command, status, step=10)
    return outputs


def suspend(run, depth="frozen"):
    """Suspend the run; return the outputs of the last ack."""
    outputs = answer(run, sent(run.ask(SuspendRun(depth=depth)))["suspend"], marks=WAITS)
    marks = {"frozen": ("thaw", SUSPENDED, "fenced_change"), "parked": WAITS, "stored": WAITS}
    for verb in {"frozen": ["freeze"], "parked": ["park"], "stored": ["store", "drain"]}[depth]:
        (commands,) = [sent(outputs)[verb]]
        outputs = answer(run, commands, marks=marks[depth])
    return outputs


def test_a_frozen_run_is_stopped_once_all_wait_and_trains_once_all_run_again(run):
    outputs = suspend(run)
    assert only(Outcome, outputs).detail == ("2 workers frozen at step 10, until torchloom resume")
    assert only(SuspensionChanged, outputs).state == "suspended"
    outputs = run.ask(ResumeRun())
    assert sent(outputs).keys() == {"thaw"}
    outputs = answer(run, sent(outputs)["thaw"], marks=WAITS)
    outputs = answer(run, sent(outputs)["resume"], marks=CAN)
    assert only(Outcome, outputs).detail == "2 workers resumed"
    assert only(SuspensionChanged, run.tick()).state == "over"
    assert not run.kernel.run.suspensions.table


@pytest.mark.parametrize("bad", [0, 1])
def test_a_suspension_that_one_rank_refuses_happens_on_none(run, bad):
    commands = sent(run.ask(SuspendRun(depth="stored")))["suspend"]
    run.ack(commands[bad], "rejected", detail="it cannot be stored")
    outputs = run.ack(commands[1 - bad], "rejected", detail="withdrawn")
    assert only(Outcome, outputs).result == "undone"
    assert not run.kernel.run.suspensions.table


def test_ranks_go_on_if_one_cannot_store(run):
    outputs = answer(run, sent(run.ask(SuspendRun(depth="stored")))["suspend"], marks=WAITS)
    first, second = sent(outputs)["store"]
    run.ack(first, "failed", detail="disk full")
    outputs = run.ack(second, "failed", detail="disk full")
    assert only(Outcome, outputs).result == "undone"
    assert "disk full" in only(Outcome, outputs).detail
    answer(run, sent(run.tick())["resume"], marks=CAN)
    run.tick()
    assert not run.kernel.run.suspensions.table
    assert not sent(run.tick())


def test_a_stored_run_is_not_over_until_it_is_resumed_and_trains(run):
    suspend(run, "stored")
    for worker in WORKERS:
        run.exit(worker, expected=True)
    assert "run_over" not in {notice.kind for notice in of(Notice, run.tick())}
    run.ask(ResumeRun())
    outcome = only(Outcome, run.tick())
    assert outcome.detail == "start the workers of the run as before: they go on after step 10"
    assert only(Verdict, run.ask(ResumeRun())).reason.endswith("they go on after step 10")
    run.feed(hello("a-0", incarnation=2, actuators=CAN, state="joining"))
    assert run.kernel.run.suspensions.table
    run.feed(telemetry("a-0", incarnation=2))
    run.tick()
    run.tick()
    assert not run.kernel.run.suspensions.table


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (SuspendRun(depth="stored"), "the run is suspended (frozen), resume it first"),
        (PauseRun(), "the run is suspended (frozen), resume it first"),
        (DrainGroup(group="a"), "the run is suspended (frozen), resume it first"),
        (SaveCheckpoint(), "the run is suspended (frozen), resume it first"),
        (ResumeRun(role="trainer"), "the whole run is suspended: resume it without a role"),
    ],
)
def test_a_request_in_the_wrong_state_gets_one_line(run, action, text):
    suspend(run)
    verdict = only(Verdict, run.ask(action))
    assert (verdict.granted, verdict.reason) == (False, text)


def test_what_was_never_suspended_is_not_resumed(run):
    assert only(Verdict, run.ask(ResumeRun())).reason == "no worker is paused or suspended"


@pytest.mark.parametrize("depth", ["frozen", "parked", "stored"])
def test_the_next_weaver_knows_what_is_suspended(run, depth):
    suspend(run, depth)
    successor, _, _ = succeed(run)
    (one,) = successor.kernel.run.suspensions.table.values()
    assert (one.depth, one.step, one.state) == (depth, 10, "suspended")


def test_a_weaver_without_a_state_takes_over_what_waits(run):
    suspend(run)
    other = Run(make_kernel(), epoch=2)
    for worker in WORKERS:
        other.feed(hello(worker, state="paused", actuators=("thaw", SUSPENDED)))
    assert only(SuspensionChanged, other.tick()).depth == "frozen"
    assert sent(other.ask(ResumeRun())).keys() == {"thaw"}


def test_a_worker_whose_sidecar_was_killed_is_stopped_again(run):
    suspend(run)
    run.feed(hello("a-0", state="paused", actuators=WAITS))
    (command,) = sent(run.tick())["freeze"]
    assert command.worker == "a-0"
    assert not sent(run.tick())


def test_the_others_are_resumed_when_a_suspended_worker_ends(run):
    suspend(run)
    outputs = run.exit("a-0")
    assert only(Notice, [o for o in of(Notice, outputs) if o.kind == "suspension_over"]).text == (
        "the run is resumed: a-0 has ended"
    )
    commands = sent(run.tick())
    assert {verb: [c.worker for c in of_verb] for verb, of_verb in commands.items()} == {
        "thaw": ["b-0"],
        "resume": ["b-0"],
    }


def test_a_node_agent_is_no_rank_that_has_to_agree(run):
    run.feed(node_agent("node-a"))
    suspend(run)
    answer(run, sent(run.ask(ResumeRun()))["thaw"], marks=WAITS)


def test_a_second_resume_of_a_parked_run_does_not_ask_for_a_start(run):
    suspend(run, "parked")
    answer(run, sent(run.ask(ResumeRun()))["resume"], marks=CAN)
    assert only(Verdict, run.ask(ResumeRun())).reason == "the run is being resumed"
