"""Workers that carry out each command once, and all requests that a run can get."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.kernel.inputs import ROSTER, actions
from tests.kernel.runs import Run, make_kernel, telemetry
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Drain, Join, Pause, Resume, SetKnob
from torchloom_core.wire.requests import ResumeActions, StopActions

CONFIG = "[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0"

AFTER = {Join: "training", Drain: "left", Pause: "paused", Resume: "training"}


class World:
    """The real state of the workers; each carries out a command once."""

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
    """Carry out all commands until no plan is under way."""
    for _ in range(8):
        for flight in list(run.kernel.commands.flights.values()):
            world.obey(flight.command)
            run.ack(flight.command)
        for hello in world.hello.values():
            if hello.state != "left":
                run.feed(telemetry(hello.worker, state=hello.state))
        run.tick()


wants = st.one_of(
    actions.map(lambda action: ("ask", action)),
    st.just(("ask", Migrate(group="a"))),
    st.tuples(st.just("ack"), st.sampled_from(["delivered", "accepted", "applied", "failed"])),
    st.tuples(st.just("report"), st.sampled_from(sorted(h.worker for h in ROSTER))),
    st.just(("stop", None)),
    st.just(("resume", None)),
)


def do(run: Run, world: World, want: tuple[str, Any], pick: int) -> None:
    match want:
        case "ask", action:
            run.ask(action)
        case "ack", status:
            flights = list(run.kernel.commands.flights.values())
            if flights:
                command = flights[pick % len(flights)].command
                if status == "applied":
                    world.obey(command)
                run.ack(command, status)
        case "report", worker:
            run.report(worker, state=world.hello[worker].state)
        case "stop", _:
            run.want(StopActions())
        case _:
            run.want(ResumeActions())


steps = st.lists(st.tuples(wants, st.integers(0, 9)), max_size=25)
