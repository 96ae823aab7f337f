"""A Weaver that dies at any moment is succeeded by one that goes on where it was."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.inputs import ROSTER, actions
from tests.kernel.runs import Run, make_kernel, of, only, telemetry, three_groups
from torchloom_core.actions import ChangeKnob, Migrate
from torchloom_core.codec import encode
from torchloom_core.decisions import Control, Issue, KnobDesired, Outcome, Recovered, Reply, Verdict
from torchloom_core.messages import Command, Drain, Hello, Join, Pause, Resume, SetKnob
from torchloom_core.requests import ResumeActions, StopActions

CONFIG = "[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0"

AFTER = {Join: "training", Drain: "left", Pause: "paused", Resume: "training"}


class World:
    """The workers, as they really are; each does a command once, whatever it is sent."""

    def __init__(self) -> None:
        self.hello: dict[str, Hello] = {hello.worker: hello for hello in ROSTER}
        self.done: list[str] = []

    def obey(self, command: Command) -> None:
        hello = self.hello[command.worker]
        if command.id in self.done or command.incarnation != hello.incarnation:
            return
        self.done.append(command.id)
        values = dict(hello.values)
        if isinstance(command.do, SetKnob):
            values[command.do.knob] = command.do.value
        state = AFTER.get(type(command.do), hello.state)
        self.hello[command.worker] = msgspec.structs.replace(hello, state=state, values=values)


def start() -> tuple[Run, World]:
    run, world = Run(make_kernel(config=CONFIG)), World()
    for hello in world.hello.values():
        run.feed(hello)
    return run, world


def settle(run: Run, world: World) -> None:
    """Let every worker do what it is told until nothing is under way."""
    for _ in range(8):
        for flight in list(run.kernel.ledger.flights.values()):
            world.obey(flight.command)
            run.ack(flight.command)
        for hello in world.hello.values():
            if hello.state != "left":
                run.feed(telemetry(hello.worker, state=hello.state))
        run.tick()


def succeed(run: Run) -> tuple[Run, list[Any], Control]:
    """Return the run under a kernel that has only what the last one had stored."""
    control = msgspec.json.decode(encode(run.kernel.control()), type=Control)
    epoch = run.kernel.ledger.epoch + 1
    successor = Run.__new__(Run)
    successor.kernel = make_kernel(config=CONFIG)
    successor.now_ns, successor.outputs = run.now_ns, []
    return successor, successor.feed(Recovered(epoch=epoch, control=control)), control


wants = st.one_of(
    actions.map(lambda action: ("ask", action)),
    st.just(("ask", Migrate(group="a"))),
    st.tuples(st.just("ack"), st.sampled_from(["delivered", "accepted", "applied", "failed"])),
    st.tuples(st.just("hear"), st.sampled_from(sorted(h.worker for h in ROSTER))),
    st.just(("stop", None)),
    st.just(("resume", None)),
)


def do(run: Run, world: World, want: tuple[str, Any], pick: int) -> None:
    match want:
        case "ask", action:
            run.ask(action)
        case "ack", status:
            flights = list(run.kernel.ledger.flights.values())
            if flights:
                command = flights[pick % len(flights)].command
                if status == "applied":
                    world.obey(command)
                run.ack(command, status)
        case "hear", worker:
            run.hear(worker, state=world.hello[worker].state)
        case "stop", _:
            run.want(StopActions())
        case _:
            run.want(ResumeActions())


steps = st.lists(st.tuples(wants, st.integers(0, 9)), max_size=25)


@settings(max_examples=150)
@given(before=steps, after=steps)
def test_a_successor_sends_what_was_in_flight_again_and_goes_on_to_the_same_end(before, after):
    run, world = start()
    for want, pick in before:
        do(run, world, want, pick)
    under_way = set(run.kernel.operations.plans)
    successor, first, control = succeed(run)

    assert all(isinstance(output, Issue) for output in first)
    sent, again = [f.command for f in control.flights], [i.command for i in of(Issue, first)]
    assert again == [msgspec.structs.replace(c, epoch=run.kernel.ledger.epoch + 1) for c in sent]
    kept = successor.kernel.control()
    assert kept == msgspec.structs.replace(control, flights=kept.flights)
    assert [f.status for f in kept.flights] == [f.status for f in control.flights]

    twin = World()
    twin.hello, twin.done = dict(world.hello), list(world.done)
    for hello in twin.hello.values():
        if hello.state != "left":
            successor.feed(hello)
    settle(run, world)
    settle(successor, twin)
    ends = {o.verdict: (o.result, o.detail) for o in run.all(Outcome) if o.verdict in under_way}
    assert {
        o.verdict: (o.result, o.detail) for o in successor.all(Outcome) if o.verdict in under_way
    } == ends
    assert set(ends) == under_way
    assert not successor.kernel.operations.plans
    assert {w: h.state for w, h in twin.hello.items()} == {
        w: h.state for w, h in world.hello.items()
    }

    for want, pick in after:
        do(successor, twin, want, pick)
    old = {c.id for c in run.commands()} | {v.proposal for v in run.all(Verdict)}
    new = {c.id for c in successor.commands() if c not in again}
    new |= {v.proposal for v in successor.all(Verdict)}
    assert not old & new


def test_a_successor_of_a_stopped_weaver_is_stopped():
    run, _ = start()
    run.want(StopActions())
    successor, _, _ = succeed(run)
    successor.feed(ROSTER[0])
    assert not only(Verdict, successor.ask(Migrate(group="a"))).granted


def test_a_successor_tells_a_worker_that_missed_a_knob():
    run = three_groups(make_kernel(config=CONFIG))
    outputs = run.ask(ChangeKnob(knob="lr", value=0.5))
    assert only(KnobDesired, outputs).value == 0.5
    for issue in of(Issue, outputs):
        run.ack(issue.command, "failed" if issue.command.worker == "a-0" else "applied")
    successor, first, _ = succeed(run)
    assert first == []
    issue = only(Issue, successor.feed(ROSTER[0]))
    assert issue.command.do == SetKnob(knob="lr", value=0.5)
    assert issue.command.id == "c2.1"


def test_a_reply_still_comes_after_a_recovery():
    run, _ = start()
    successor, _, _ = succeed(run)
    assert only(Reply, successor.ask(Migrate(group="a"))).text.startswith("denied by impossible")
