"""Which standbys the lighthouse holds back, and which ones prepare their Manager."""

import pytest

from tests.kernel.runs import (
    Run,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    only,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.decisions import Issue, Outcome
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.operations import Cut, Drain, Join, Prepare
from torchloom_core.wire.requests import ResumeActions, StopActions
from torchloom_core.wire.steering import HoldBack, Steer

CONFIG = """
[arbiter]
max_in_motion_share = 1
cooldown_s = 0
[arbiter.breaker]
max_moved_share = 1
"""


def standby(worker: str, can: str = "prepare", **changes):
    return hello(worker, state="standby", actuators=("drain", "join", can), **changes)


def run_with(*standbys: str, config: str = CONFIG) -> Run:
    run = three_groups(make_kernel(config=config), standby=False)
    for worker in standbys:
        run.feed(standby(worker))
    return run


@pytest.fixture
def run() -> Run:
    """A run with a standby s whose lighthouse has been seen."""
    built = run_with("s-0")
    built.feed(lighthouse_view())
    return built


def held(outputs) -> list[tuple[str, ...]]:
    return [steer.do.names for steer in of(Steer, outputs) if isinstance(steer.do, HoldBack)]


def receivers(outputs, operation) -> list[str]:
    commands = [issue.command for issue in of(Issue, outputs)]
    return [command.worker for command in commands if isinstance(command.do, operation)]


def hears(run: Run, **changes):
    """Confirm all acts that were sent to the lighthouse."""
    steer = run.all(Steer)[-1]
    return run.feed(lighthouse_view(**{"epoch": steer.epoch, "number": steer.number} | changes))


def prepare(run: Run) -> None:
    """Prepare all standbys, and report it."""
    run.tick()
    hears(run)
    for issue in of(Issue, run.tick()):
        run.feed(standby(issue.command.worker, "prepared"))
        run.ack(issue.command)


def restarted(before: Run, **changes) -> Run:
    """Start another Weaver with the stored state."""
    control = before.kernel.control()
    after = Run(make_kernel(config=CONFIG), epoch=2, now_ns=before.now_ns)
    after.feed(Recovered(epoch=2, control=control))
    after.feed(lighthouse_view(epoch=1, number=1, **changes))
    return after


def test_a_standby_is_prepared_once_the_lighthouse_holds_it_back(run):
    outputs = run.tick()
    assert (held(outputs), receivers(outputs, Prepare)) == ([("s",)], [])
    assert only(Steer, outputs).reason == "they are standbys"
    run.feed(lighthouse_view(epoch=1, number=0))
    assert receivers(run.tick(), Prepare) == []
    hears(run)
    assert receivers(run.tick(), Prepare) == ["s-0"]
    assert receivers(run.tick(), Prepare) == []


def test_acts_of_an_earlier_weaver_do_not_count(run):
    run.tick()
    run.feed(lighthouse_view(epoch=0, number=9))
    assert receivers(run.tick(), Prepare) == []


def test_no_standby_is_prepared_without_quorums(run):
    run.tick()
    hears(run, members=())
    assert receivers(run.tick(), Prepare) == []


def test_no_standby_is_held_back_or_prepared_with_torchfts_lighthouse():
    run = run_with("s-0")
    assert (run.tick(), run.tick()) == ([], [])


def test_a_later_standby_is_prepared_only_after_the_next_act(run):
    run.tick()
    hears(run)
    run.feed(standby("t-0"))
    fleet = run.kernel.fleet
    assert run.kernel.run.held_standbys.to_prepare(set()) == [fleet.row_of["s-0"]]


def test_a_standby_that_cannot_be_held_back_is_ignored():
    run = run_with()
    run.feed(hello("s-0", state="standby"))
    run.feed(standby("t-0"))
    run.feed(standby("t-1", can="checkpoint"))
    run.feed(lighthouse_view())
    assert held(run.tick()) == [()]
    hears(run)
    assert receivers(run.tick(), Prepare) == []


def test_all_ranks_of_a_group_are_prepared_together():
    run = run_with("s-0", "s-1")
    run.feed(lighthouse_view())
    assert held(run.tick()) == [("s",)]
    hears(run)
    assert receivers(run.tick(), Prepare) == ["s-0", "s-1"]


@pytest.mark.parametrize("status", ["rejected", "failed", "applied"])
def test_an_incarnation_that_has_answered_is_not_asked_again(run, status):
    run.tick()
    hears(run)
    command = only(Issue, run.tick()).command
    run.ack(command, status)
    assert receivers(run.tick(), Prepare) == []
    run.feed(standby("s-0", incarnation=2))
    assert receivers(run.tick(), Prepare) == ["s-0"]


def test_a_standby_that_rejected_prepare_may_join(run):
    run.tick()
    hears(run)
    run.ack(only(Issue, run.tick()).command, "rejected")
    outputs = run.ask(Migrate(group="a"))
    assert (receivers(outputs, Join), held(outputs)) == (["s-0"], [()])


def test_an_expired_prepare_is_sent_again(run):
    run.tick()
    hears(run)
    run.tick()
    assert receivers(run.tick(70.0), Prepare) == ["s-0"]


@pytest.mark.parametrize("action", [Migrate(group="a"), AdmitGroup(group="s")])
def test_a_standby_is_released_when_its_join_is_issued(run, action):
    prepare(run)
    outputs = run.ask(action)
    assert (receivers(outputs, Join), held(outputs)) == (["s-0"], [()])
    run.ack(only(Issue, outputs).command)
    assert held(run.tick()) == []
    run.report("s-0")
    assert held(run.tick()) == []


def test_a_replacement_is_held_back_until_its_join_is_issued(run):
    for group in "abc":
        run.feed(in_quorum(f"{group}-0", 7))
    prepare(run)
    outputs = run.ask(EvictGroup(group="b", then="replace"))
    assert (receivers(outputs, Cut), held(outputs)) == (["a-0", "c-0"], [])
    assert held(run.tick()) == []
    cuts = [run.ack(issue.command) for issue in of(Issue, outputs)]
    assert (receivers(cuts[1], Join), held(cuts[1])) == (["s-0"], [()])


def test_a_batch_from_before_the_join_does_not_hold_it_back_again(run):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    run.feed(telemetry("s-0", state="standby", step=-1))
    run.ack(command)
    assert held(run.tick()) == []


@pytest.mark.parametrize("status", ["rejected", "expired"])
def test_a_standby_whose_join_failed_is_held_back_again(run, status):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    assert only(Outcome, run.ack(command, status)).result == "undone"
    assert held(run.tick()) == [("s",)]


def test_a_standby_with_a_withdrawn_join_is_held_back_once_that_has_ended(run):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    run.want(StopActions())
    assert held(run.tick()) == []
    run.ack(command, "expired")
    assert held(run.tick()) == [("s",)]


def test_the_others_stay_held_back_when_one_joins():
    run = run_with("s-0", "t-0")
    run.feed(lighthouse_view())
    prepare(run)
    assert held(run.ask(AdmitGroup(group="s"))) == [("t",)]


def test_a_standby_that_dies_is_not_held_back_any_more(run):
    prepare(run)
    run.exit("s-0")
    assert held(run.tick()) == [()]


def test_a_standby_that_is_drained_stays_held_back_and_is_not_prepared(run):
    run.tick()
    hears(run)
    assert receivers(run.ask(DrainGroup(group="s")), Drain) == ["s-0"]
    assert (held(run.tick()), receivers(run.all(Issue), Prepare)) == ([], [])


def test_standbys_are_prepared_only_after_actions_are_resumed(run):
    run.want(StopActions())
    assert held(run.tick()) == [("s",)]
    hears(run)
    assert receivers(run.tick(), Prepare) == []
    run.want(ResumeActions())
    assert receivers(run.tick(), Prepare) == ["s-0"]


def test_no_standby_is_prepared_in_a_dry_run():
    run = run_with("s-0", config="[arbiter]\ndry_run = true")
    run.feed(lighthouse_view())
    run.tick()
    hears(run)
    assert receivers(run.tick(), Prepare) == []


def test_a_restarted_weaver_sends_the_held_names_and_prepares_none_again(run):
    prepare(run)
    after = restarted(run, held=("s:uuid",))
    # Nobody has steer hello yet: that s may join is not known.
    assert held(after.tick()) == [("s",)]
    for group in "abc":
        after.feed(hello(f"{group}-0"))
    after.feed(standby("s-0", "prepared"))
    hears(after, held=("s:uuid",))
    assert (held(after.tick()), receivers(after.all(Issue), Prepare)) == ([], [])


def test_a_restarted_weaver_releases_a_standby_with_a_join(run):
    prepare(run)
    run.ask(AdmitGroup(group="s"))
    after = restarted(run, held=("s:uuid",))
    after.feed(standby("s-0", "prepared"))
    assert held(after.tick()) == [()]


def test_a_restarted_weaver_releases_a_standby_that_joined_meanwhile(run):
    prepare(run)
    after = restarted(run)
    after.feed(hello("s-0", state="joining"))
    assert held(after.tick()) == [()]


@pytest.mark.parametrize("state", ["new", "restored"])
def test_a_restarted_lighthouse_gets_the_held_names(run, state):
    prepare(run)
    run.feed(lighthouse_view(incarnation=2, state=state, epoch=1))
    assert held(run.outputs)[-1] == ("s",)
    assert len(held(run.outputs)) == 2
    run.feed(standby("t-0"))
    run.tick()
    assert receivers(run.tick(), Prepare) == []  # the lighthouse has not confirmed t
    hears(run, incarnation=2)
    assert receivers(run.tick(), Prepare) == ["t-0"]


def test_a_restarted_lighthouse_with_an_old_state_gets_an_empty_list(run):
    prepare(run)
    run.ask(AdmitGroup(group="s"))
    hears(run)
    run.feed(lighthouse_view(incarnation=2, state="restored", epoch=1, held=("s:uuid",)))
    assert held(run.outputs)[-2:] == [(), ()]
