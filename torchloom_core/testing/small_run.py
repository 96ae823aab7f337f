"""A run of a few workers in a real kernel, on which an action is carried out by hand."""

from collections.abc import Iterable, Sequence

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import Issue, Output
from torchloom_core.wire.events import Input, Recovered
from torchloom_core.wire.messages import Hello, Telemetry
from torchloom_core.wire.requests import Propose, Request

_START_NS = 1_700_000_000 * SECOND_NS


def hellos(actuators: Iterable[str]) -> tuple[Hello, ...]:
    """Return three workers that support the ``actuators``, which are verbs of operations.

    ``g0-0`` and ``g1-0`` train on ``n0`` and ``n1``; ``s-0`` is a standby on ``n2``.

    Examples
    --------
    >>> from torchloom_core.testing import hellos
    >>> [(hello.worker, hello.node, hello.state) for hello in hellos(["dump"])]
    [('g0-0', 'n0', 'training'), ('g1-0', 'n1', 'training'), ('s-0', 'n2', 'standby')]
    """
    return tuple(
        Hello(
            run="run",
            worker=f"{group}-0",
            incarnation=1,
            group=group,
            rank=0,
            node=f"n{number}",
            state="standby" if group == "s" else "training",
            actuators=tuple(actuators),
        )
        for number, group in enumerate(("g0", "g1", "s"))
    )


class SmallRun:
    """A kernel without plugins that has had ``inputs``, a second apart."""

    def __init__(self, inputs: Sequence[Input | Telemetry] = ()) -> None:
        self._kernel = Kernel(Config(), ActivePlugins(), RecordedGuard())
        self._now_ns = _START_NS
        for message in (Recovered(epoch=1), *inputs):
            self._take(message)

    @property
    def run(self) -> Run:
        """The run as a kind of action sees it."""
        return self._kernel.run

    def carry_out(self, action: Action) -> list[Output]:
        """Return all outputs from a person's proposal on; workers apply each command at step 5."""
        outputs = self._take(Request(id="r1", want=Propose(action=action, sure=True)))
        for output in outputs:  # grows meanwhile
            if isinstance(output, Issue):
                outputs += self._take(_applied(output.command))
        return outputs

    def _take(self, message: Input | Telemetry) -> list[Output]:
        self._now_ns += SECOND_NS
        return list(self._kernel.step(message, self._now_ns))


def _applied(command: Command) -> Ack:
    return Ack(
        command=command.id,
        run=command.run,
        worker=command.worker,
        incarnation=command.incarnation,
        epoch=command.epoch,
        status="applied",
        step=5,
    )
