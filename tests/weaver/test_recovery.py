"""A Weaver that is killed between two writes leaves no command without an end, or with two."""

import tempfile
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import START_NS, Run, hello, make_kernel, of, only, three_groups
from tests.kernel.worlds import CONFIG, World, do, settle, start, steps
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.weaver.outbox import AT_KEY, At
from torchloom_core.live.weaver.recovery import Inheritance, same_input
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode, encode_telemetry
from torchloom_core.wire.commands import FINAL_STATUSES
from torchloom_core.wire.decisions import (
    CommandStatus,
    InputFailed,
    Issue,
    Outcome,
    Verdict,
    Withdrawal,
)
from torchloom_core.wire.events import NodeFault, Recovered
from torchloom_core.wire.messages import Telemetry
from torchloom_core.wire.plans import WITHDRAWN
from torchloom_core.wire.requests import (
    Approve,
    ForgetKnob,
    Propose,
    Request,
    ResumeActions,
    StopActions,
)


class Recorder:
    """Records a run's inputs, and stores its state on demand."""

    def __init__(self, run: Run, root: Path) -> None:
        self.root = root
        self.stored: dict[str, bytes] = {}
        self._kernel = run.kernel
        self._waiting: dict[str, bytes | None] = {}
        self._writer = TrajectoryWriter(
            root, "run", run.kernel.commands.epoch, Config(), {}, START_NS
        )
        self._writer._seq = run.kernel.seq
        step, changes = run.kernel.step, run.kernel.changes

        def recorded(message, ts_ns):
            outputs = step(message, ts_ns)
            if isinstance(message, Telemetry):
                self._writer.telemetry(encode_telemetry(message), ts_ns)
            else:
                self._writer.event(message, ts_ns, outputs)
            return outputs

        def taken():
            found = changes()
            for key, entry in found.items():
                self._waiting.pop(key, None)
                self._waiting[key] = None if entry is None else encode(entry)
            return found

        run.kernel.step, run.kernel.changes = recorded, taken  # type: ignore[method-assign]

    def store(self, share: float = 1.0) -> None:
        """Store the pending entries, or the first part of them, as with a kill in between."""
        self._waiting[AT_KEY] = encode(At(seq=self._kernel.seq))
        for key, data in list(islice(self._waiting.items(), round(share * len(self._waiting)))):
            del self._waiting[key]
            if data is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = data
        self._waiting.pop(AT_KEY, None)

    def inheritance(self) -> Inheritance:
        self._writer.flush()
        inheritance = Inheritance(self.stored, "bucket TL_run")
        inheritance.follow(self.root, self._kernel.commands.epoch)
        return inheritance

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def recorder(tmp_path):
    """Return a function that records a run from now on."""
    recorders = []

    def record(run):
        recorders.append(Recorder(run, tmp_path))
        recorders[-1].store()
        return recorders[-1]

    yield record
    for one in recorders:
        one.close()


def succeed(run: Run, recorder: Recorder) -> Run:
    """Return the run under a successor, which has the stored state."""
    recovered = recorder.inheritance().recovered(run.kernel.commands.epoch + 1)
    successor = Run.__new__(Run)
    successor.kernel = make_kernel(config=CONFIG)
    successor.now_ns, successor.outputs, successor.stored = run.now_ns, [], {}
    successor.feed(recovered)
    return successor


def ends(*runs: Run) -> Counter[str]:
    """Count how often each command has ended on record."""
    statuses = [status for run in runs for status in of(CommandStatus, run.outputs)]
    return Counter(s.command for s in statuses if s.status in FINAL_STATUSES)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(
    known=steps,
    unstored=steps,
    share=st.floats(0, 1),
    after=steps,
)
def test_every_command_and_every_grant_has_one_end_on_record(known, unstored, share, after):
    run, world = start()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(run, Path(folder))
        for want, pick in known:
            do(run, world, want, pick)
        recorder.store()
        # From here inputs are recorded but not all state is stored: nothing was sent.
        issued = len(run.all(Issue))
        for want, pick in unstored:
            do(run, world, want, min(pick, issued))
        recorder.store(share)
        successor = succeed(run, recorder)
        recorder.close()
    twin = World()
    twin.hello, twin.done = dict(world.hello), list(world.done)
    for worker in twin.hello.values():
        if worker.state != "left":
            successor.feed(worker)
    for want, pick in after:
        do(successor, twin, want, pick)
    if successor.kernel.run.switch.stopped:
        successor.want(ResumeActions())
    settle(successor, twin)
    for _ in range(3):
        successor.tick(120.0)  # a withdrawn command without an ack ends at its deadline
    issued = {c.id for c in (*run.commands(), *successor.commands())}
    assert ends(run, successor) == Counter(issued)
    granted = [v.proposal for v in (*run.all(Verdict), *successor.all(Verdict)) if v.granted]
    outcomes = [o.verdict for o in (*run.all(Outcome), *successor.all(Outcome))]
    assert sorted(outcomes) == sorted(granted)


def test_a_recorded_end_is_not_published_twice(recorder):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    files.store()
    commands = run.commands()
    run.ack(commands[0])
    run.ack(commands[1], "failed", detail="out of memory")  # on record; then the Weaver is killed
    successor = succeed(run, files)
    assert [c.id for c in successor.commands()] == [commands[2].id]
    successor.ack(commands[2])
    outcome = only(Outcome, successor.outputs)
    assert (outcome.result, outcome.detail) == (
        "partial",
        f"{commands[1].id} failed: out of memory",
    )
    assert ends(run, successor) == Counter(c.id for c in commands)


def test_a_command_that_was_never_stored_and_ended_on_record_is_not_ended_again(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(Migrate(group="a"))
    run.exit("s-0")
    (join,) = run.commands()
    successor = succeed(run, files)
    successor.tick()
    assert ends(run, successor) == {join.id: 1}
    assert not successor.all(Outcome)


def test_an_action_granted_but_never_stored_has_an_outcome_and_was_never_sent(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(Migrate(group="a"))
    successor = succeed(run, files)
    (join,) = run.commands()
    last = only(CommandStatus, successor.outputs)
    assert (last.command, last.status) == (join.id, "expired")
    assert last.detail == "the Weaver ended before it was sent"
    outcome = only(Outcome, successor.outputs)
    assert (outcome.result, outcome.detail) == ("undone", "the Weaver ended before it was sent")
    assert outcome.took_s == 0.0
    assert not successor.commands()


def test_an_end_by_a_weaver_that_never_took_over_is_not_repeated(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(Migrate(group="a"))
    recovered = files.inheritance().recovered(2)
    cut_short = make_kernel(config=CONFIG)
    with closing(TrajectoryWriter(files.root, "run", 2, Config(), {}, START_NS)) as writer:
        outputs = cut_short.step(recovered, run.now_ns)
        writer.event(recovered, run.now_ns, outputs)
    assert of(Outcome, outputs)
    recovered = files.inheritance().recovered(3)
    assert (recovered.unsent, recovered.unstarted) == ((), ())


def test_stored_entries_of_all_kinds_are_taken_over(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(CordonNode(node="node-a"))
    run.feed(NodeFault(node="node-b", kind="xid", ts_ns=run.now_ns, id="e1"))
    answer = run.want(Approve(proposal="p1.9"), sent_as="abc")
    files.store()
    kernel = succeed(run, files).kernel
    assert kernel.fleet.cordons.nodes == {"node-a"}
    assert [fault.id for fault in kernel.control().faults] == ["e1"]
    assert [answered.reply for answered in kernel.control().answers] == [answer]


def test_records_before_the_stored_state_are_not_applied_again(tmp_path):
    with closing(TrajectoryWriter(tmp_path, "run", 1, Config(), {}, START_NS)) as writer:
        writer.event(Request(id="r1", want=StopActions()), START_NS, [])
    for seq, stopped in ((1, False), (0, True)):
        inheritance = Inheritance({AT_KEY: encode(At(seq=seq))}, "bucket TL_run")
        inheritance.follow(tmp_path, 1)
        assert inheritance.recovered(2).control.stopped is stopped


def test_a_desired_value_that_was_cleared_on_record_alone_is_gone(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    for command in run.commands():
        run.ack(command)
    files.store()
    run.want(ForgetKnob(knob="lr"))
    assert succeed(run, files).kernel.control().desired == ()


def test_a_command_withdrawn_on_record_by_the_kill_switch_is_not_sent_again(recorder):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    files.store()
    run.ack(run.commands()[0], "accepted")
    run.want(StopActions())
    successor = succeed(run, files)
    assert [command.worker for command in successor.commands()] == ["a-0"]
    assert [withdrawal.worker for withdrawal in successor.all(Withdrawal)] == ["b-0", "c-0"]
    assert [f.status for f in successor.kernel.control().flights] == [
        "accepted",
        WITHDRAWN,
        WITHDRAWN,
    ]
    assert not successor.all(Outcome)
    for command in run.commands():
        successor.ack(command, "applied" if command.worker == "b-0" else "failed")
    assert only(Outcome, successor.outputs).detail == (
        "actions were stopped: 1 of 3 commands were applied"
    )


def test_a_cordon_whose_end_was_half_stored_has_ended(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(CordonNode(node="node-a"))
    run.ask(CordonNode(node="node-b", lasts_s=60.0))
    files.store()
    run.ask(UncordonNode(node="node-a"))
    run.tick(61.0)
    files.store(share=0.75)  # both are off file; how far the state is was not written any more
    assert not any(key.startswith("cordon") for key in files.stored)
    assert succeed(run, files).kernel.fleet.cordons.nodes == set()


def test_a_cordon_that_was_granted_and_never_begun_is_none_for_the_next_weaver_either(tmp_path):
    undone = Outcome(
        verdict="p1.1",
        policy="person",
        action=CordonNode(node="node-a"),
        result="undone",
        detail="the Weaver ended before it was sent",
        took_s=0.0,
    )
    with closing(TrajectoryWriter(tmp_path, "run", 2, Config(), {}, START_NS)) as writer:
        writer.event(Recovered(epoch=2), START_NS, [undone])
    inheritance = Inheritance({}, "bucket TL_run")
    inheritance.follow(tmp_path, 2)
    assert inheritance.recovered(3).control.cordoned == ()


def test_commands_that_failed_on_record_alone_are_each_its_own_plans(recorder):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    run.ask(SaveCheckpoint())
    files.store()
    commands = run.commands()
    run.ack(commands[0], "failed")
    run.ack(commands[3], "failed", detail="disk full")
    successor = succeed(run, files)
    for command in (*commands[1:3], *commands[4:]):
        successor.ack(command, epoch=2)
    assert [outcome.detail for outcome in successor.all(Outcome)] == [
        f"{commands[0].id} failed",
        f"{commands[3].id} failed: disk full",
    ]


def test_a_failure_that_the_stored_plan_knows_of_is_counted_once(recorder):
    run = Run(make_kernel(config=CONFIG))
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker))
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    files.store()
    first, second = run.commands()
    run.ack(first, "failed")
    files.store(share=0.4)  # the plan, not that its command is in flight no more
    assert f"flight.{first.id}" in files.stored
    assert b"failed" in files.stored["plan.p1.1"]
    successor = succeed(run, files)
    successor.ack(second, epoch=2)
    assert only(Outcome, successor.outputs).result == "partial"


def test_an_answered_kill_switch_applies_although_it_was_not_stored(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.want(StopActions())
    assert succeed(run, files).kernel.run.switch.stopped
    files.store()
    run.want(ResumeActions())
    assert not succeed(run, files).kernel.run.switch.stopped


def test_an_answer_that_was_stored_is_given_again_and_one_that_was_not_is_found_anew(recorder):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    files = recorder(run)
    knob = Propose(action=ChangeKnob(knob="lr", value=0.5))
    stored = run.want(knob, sent_as="stored")
    files.store()
    lost = run.want(knob, sent_as="lost")  # of this one nothing was sent
    successor = succeed(run, files)
    assert successor.want(knob, sent_as="stored") == stored
    assert successor.want(knob, sent_as="lost").ids != lost.ids


def test_an_answered_cordon_applies_although_it_was_not_stored(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(CordonNode(node="node-a"))
    run.ask(CordonNode(node="node-b", lasts_s=60.0))
    cordons = succeed(run, files).kernel.fleet.cordons
    assert cordons.nodes == {"node-a", "node-b"}
    assert cordons.until_ns == run.kernel.fleet.cordons.until_ns
    files.store()
    run.ask(UncordonNode(node="node-a"))
    run.tick(61.0)
    assert succeed(run, files).kernel.fleet.cordons.nodes == set()


def test_a_state_without_its_trajectory_is_taken_as_it_is(tmp_path):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    inheritance = Inheritance(run.stored, "bucket TL_run")
    inheritance.follow(tmp_path, 1)
    assert len(inheritance.recovered(2).control.flights) == 3
    assert inheritance.poison is None


def test_an_entry_that_cannot_be_read_is_one_clear_line():
    with pytest.raises(StateError, match=r"^bucket TL_run, key plan.p1: cannot be read: .*verdict"):
        Inheritance({"plan.p1": b"{}"}, "bucket TL_run")


def test_the_input_at_which_the_last_weaver_failed_is_known_again(tmp_path):
    run = Run(make_kernel(config=CONFIG))
    failed = Recovered(epoch=7)
    with_end = TrajectoryWriter(tmp_path, "run", 1, Config(), {}, START_NS)
    with_end.event(failed, START_NS, [InputFailed(error="ValueError: no", trace="")])
    with_end.close()
    inheritance = Inheritance(run.stored, "bucket TL_run")
    inheritance.follow(tmp_path, 1)
    assert inheritance.poison is not None
    assert same_input(failed, inheritance.poison)
    assert not same_input(Recovered(epoch=8), inheritance.poison)


@pytest.mark.parametrize("outputs", [[], [Withdrawal(command="c1", worker="w1")]])
def test_an_input_that_did_not_fail_is_not_skipped(tmp_path, outputs):
    with closing(TrajectoryWriter(tmp_path, "run", 1, Config(), {}, START_NS)) as writer:
        writer.event(Recovered(epoch=1), START_NS, outputs)
    inheritance = Inheritance({}, "bucket TL_run")
    inheritance.follow(tmp_path, 1)
    assert inheritance.poison is None


def test_commands_that_were_never_sent_are_not_taken_for_applied_where_their_plan_was_stored(
    recorder,
):
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    files = recorder(run)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    files.store(share=0.2)  # the plan, none of its commands
    assert list(files.stored) == [AT_KEY, "plan.p1.1"]
    successor = succeed(run, files)
    successor.tick()
    outcome = only(Outcome, successor.outputs)
    why = "expired: the Weaver ended before it was sent"
    assert (outcome.result, outcome.detail) == (
        "undone",
        ", ".join(f"{command.id} {why}" for command in run.commands()),
    )
    assert successor.kernel.control().desired == ()


def test_a_stage_that_was_never_sent_is_sent_where_its_plan_was_not_stored(recorder):
    run = three_groups(make_kernel(config=CONFIG))
    files = recorder(run)
    run.ask(Migrate(group="a"))
    run.ack(run.commands()[0])
    files.store()
    run.report("s-0", state="training")  # the drain is on record alone
    assert len(run.commands()) == 2
    successor = succeed(run, files)
    successor.feed(hello("a-0"))
    (drain,) = of(Issue, successor.feed(hello("s-0")))
    successor.ack(drain.command)
    assert only(Outcome, successor.outputs).result == "done"
