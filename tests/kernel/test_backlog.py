"""A Weaver that lags behind its reports, or was down, ends no command before it has caught up."""

from tests.kernel.runs import Run, make_kernel, of, only, telemetry, three_groups
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import CommandStatus, Issue, Outcome
from torchloom_core.wire.events import Backlog

BEHIND = Backlog(taken_until_ns=0)
CAUGHT_UP = Backlog(taken_until_ns=None)


def run_with_commands() -> Run:
    """Return a run with a knob command in flight to each of three workers."""
    run = three_groups(make_kernel(), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    return run


def test_no_command_expires_before_all_reports_are_read():
    run = run_with_commands()
    run.feed(BEHIND, after_s=60.0)
    assert not of(CommandStatus, run.tick(600.0))
    for command in run.commands():
        run.ack(command)
    run.feed(CAUGHT_UP)
    run.tick(600.0)
    assert only(Outcome, run.outputs).result == "done"


def test_workers_have_a_moment_to_report_once_the_weaver_has_caught_up():
    run = run_with_commands()
    run.feed(BEHIND, after_s=600.0)
    run.feed(CAUGHT_UP)
    assert not of(CommandStatus, run.tick(4.0))
    run.ack(run.commands()[0])
    run.tick(2.0)
    assert only(Outcome, run.outputs).result == "partial"


def test_deadlines_before_the_time_of_the_last_report_are_checked():
    run = run_with_commands()
    deadline_ns = run.commands()[0].deadline_ns
    run.feed(Backlog(taken_until_ns=deadline_ns), after_s=600.0)
    assert not of(CommandStatus, run.tick())
    run.feed(Backlog(taken_until_ns=deadline_ns + 6 * 10**9))
    assert [status.status for status in of(CommandStatus, run.tick())] == ["expired"] * 3


def test_a_standby_with_unread_reports_is_not_late():
    run = three_groups(make_kernel())
    run.ack(only(Issue, run.ask(Migrate(group="a"))).command)
    run.feed(BEHIND, after_s=600.0)
    run.tick()
    run.feed(telemetry("s-0"))
    run.feed(CAUGHT_UP)
    run.tick()
    assert not run.all(Outcome)
    assert run.commands()[-1].worker == "a-0"  # to be drained
