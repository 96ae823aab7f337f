"""The pure decision: each command runs once, however its copies arrive."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.wire.commands import FINAL_STATUSES, Ack, Command
from torchloom_core.wire.operations import Checkpoint, Drain
from torchloom_threadlet.trainer import command_inbox as inbox_module
from torchloom_threadlet.trainer.command_inbox import CommandInbox

INCARNATION = 7
DEADLINE_NS = 1000


def command(command_id, epoch=1, incarnation=INCARNATION, do=None, deadline_ns=DEADLINE_NS):
    return Command(
        id=command_id,
        run="run",
        worker="g0-0",
        incarnation=incarnation,
        epoch=epoch,
        issued_ns=0,
        deadline_ns=deadline_ns,
        do=do or Checkpoint(),
    )


copies = st.builds(
    command,
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 4),
    st.sampled_from([INCARNATION, INCARNATION, INCARNATION, INCARNATION - 1]),
)
arrivals = st.lists(st.one_of(copies, st.just("step")), max_size=40)


@given(arrivals)
def test_copies_in_any_order_and_number_run_once_and_get_the_same_answer(events):
    inbox = CommandInbox(INCARNATION)
    waiting, done, ended = [], [], {}
    highest = 0
    for now_ns, event in enumerate([*events, "step"]):
        if event == "step":
            for command_id in waiting:
                assert inbox.begin(command_id, now_ns) is None
                done.append(command_id)
                ended[command_id] = inbox.settle(command_id, "applied", now_ns).status
            waiting.clear()
            continue
        ack, do = inbox.receive(event, now_ns)
        assert (ack.command, ack.epoch) == (event.id, event.epoch)
        if event.incarnation != INCARNATION:
            assert (ack.status, do) == ("rejected", False)
            continue
        if event.id in ended:
            assert (ack.status, do) == (ended[event.id], False)
        elif event.id in waiting:
            assert (ack.status, do) == ("accepted", False)
        else:
            assert do == (event.epoch >= highest)
            assert ack.status == ("accepted" if do else "rejected")
        if do:
            waiting.append(event.id)
        highest = max(highest, event.epoch)
    assert len(done) == len(set(done))
    newest = {
        event.id
        for event in events
        if event != "step" and event.incarnation == INCARNATION and event.epoch == highest
    }
    assert newest <= set(done)


def test_a_stale_copy_does_not_affect_the_valid_one():
    inbox = CommandInbox(INCARNATION)
    inbox.receive(command("other", epoch=2), 0)
    ack, do = inbox.receive(command("a", epoch=1), 0)
    assert (ack.status, ack.detail, do) == (
        "rejected",
        "stale epoch 1, the Weaver is at 2",
        False,
    )
    ack, do = inbox.receive(command("a", epoch=2), 0)
    assert (ack.status, do) == ("accepted", True)


def test_a_deadline_counts_until_the_step_boundary():
    inbox = CommandInbox(INCARNATION)
    assert inbox.receive(command("a"), DEADLINE_NS)[1]
    assert inbox.begin("a", DEADLINE_NS + 1).status == "expired"
    ack, do = inbox.receive(command("a", epoch=2), DEADLINE_NS)
    assert (ack.status, do) == ("expired", False)
    assert inbox.receive(command("b", epoch=2), DEADLINE_NS + 1)[0].status == "expired"


def test_a_command_that_became_impossible_is_rejected_at_the_boundary():
    inbox = CommandInbox(INCARNATION)
    inbox.receive(command("a", do=Drain()), 0)
    ack = inbox.begin("a", 1, refusal="the worker has left")
    assert (ack.status, ack.detail) == ("rejected", "the worker has left")


def test_only_commands_past_their_deadline_are_forgotten():
    inbox = CommandInbox(INCARNATION)
    inbox.receive(command("stored", deadline_ns=10**12), 0)
    inbox.settle("stored", "applied", 0)
    for number in range(4100):
        inbox.receive(command(str(number)), 0)
        inbox.settle(str(number), "applied", 0)
    now_ns = DEADLINE_NS + 1
    for number in range(4100, 4102):
        inbox.receive(command(str(number), deadline_ns=10**12), now_ns)
        inbox.settle(str(number), "applied", now_ns)
    assert inbox.receive(command("stored", deadline_ns=10**12), now_ns)[0].status == "applied"
    ack, do = inbox.receive(command("0"), now_ns)
    assert (ack.status, do) == ("expired", False)
    assert ack.status in FINAL_STATUSES


def test_an_ack_has_its_worker_time_and_step():
    inbox = CommandInbox(INCARNATION)
    fields = {"command": "a", "run": "run", "worker": "g0-0", "incarnation": INCARNATION}
    accepted, _ = inbox.receive(command("a"), 10, step=3)
    assert accepted == Ack(**fields, epoch=1, status="accepted", step=3, ts_ns=10)
    applied = inbox.settle("a", "applied", 20, step=4)
    assert applied == Ack(**fields, epoch=1, status="applied", step=4, ts_ns=20)
    again, _ = inbox.receive(command("a", epoch=2), 30, step=9)
    assert again == Ack(**fields, epoch=2, status="applied", step=4, ts_ns=30)


def test_a_command_for_another_incarnation_is_rejected_with_both_numbers():
    ack, do = CommandInbox(INCARNATION).receive(command("a", incarnation=6), 10, step=3)
    assert (ack.status, do) == ("rejected", False)
    assert (ack.detail, ack.step, ack.ts_ns) == ("need incarnation 7, was 6", 3, 10)


def test_an_impossible_command_is_rejected_on_arrival_for_good_with_the_reason():
    inbox = CommandInbox(INCARNATION)
    ack, do = inbox.receive(command("a"), 10, step=3, refusal="no checkpoint actuator")
    assert (ack.status, ack.detail, do) == ("rejected", "no checkpoint actuator", False)
    ack, do = inbox.receive(command("a", epoch=2), 20, step=4)
    assert (ack.status, ack.detail, do) == ("rejected", "no checkpoint actuator", False)
    assert ack.step == 3


def test_a_late_command_is_rejected_with_the_clock_in_the_reason():
    """Clocks an hour apart would otherwise leave no trace of why nothing happens."""
    inbox = CommandInbox(INCARNATION)
    ack, do = inbox.receive(command("a"), DEADLINE_NS + 3600 * 10**9)
    assert (ack.status, do) == ("expired", False)
    assert ack.detail == "it arrived 3600.0 s after its deadline, by this host's clock"


def test_an_ack_of_a_command_that_expired_before_a_step_has_time_and_step():
    inbox = CommandInbox(INCARNATION)
    inbox.receive(command("a"), 0)
    ack = inbox.begin("a", DEADLINE_NS + 5, step=8)
    assert (ack.status, ack.ts_ns, ack.step, ack.detail) == ("expired", DEADLINE_NS + 5, 8, "")
    ack, _ = inbox.receive(command("b"), DEADLINE_NS + 6, step=9)
    assert (ack.status, ack.ts_ns, ack.step) == ("expired", DEADLINE_NS + 6, 9)


def test_the_number_of_stored_commands_past_their_deadline_is_bounded(monkeypatch):
    monkeypatch.setattr(inbox_module, "_MOST_ENDED", 2)
    inbox = CommandInbox(INCARNATION)
    late_ns = DEADLINE_NS + 1
    for command_id in ("a", "b", "c"):
        inbox.receive(command(command_id), 0)
    for command_id in ("a", "b", "c"):
        inbox.settle(command_id, "applied", late_ns)
    assert inbox.receive(command("a", epoch=2), late_ns)[0].status == "expired"
