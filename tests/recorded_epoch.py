"""A short epoch of a Weaver, recorded as the Weaver records it."""

from pathlib import Path

from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import CommandStatus, Issue, Output
from torchloom_core.wire.events import Input, Recovered, Tick
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Note, Telemetry
from torchloom_core.wire.requests import Propose, Request, StopActions

START_NS = 1_700_000_000 * SECOND_NS


class Recorder:
    """A kernel whose inputs are recorded as the Weaver records them."""

    def __init__(self, root: Path, epoch: int) -> None:
        self._kernel = Kernel(Config(), ActivePlugins(), RecordedGuard())
        self.writer = TrajectoryWriter(root, "run", epoch, Config(), {}, START_NS)
        self._now_ns = START_NS + epoch * 1000 * SECOND_NS

    def step(self, message: Telemetry | Input, *, lose: int = 0) -> list[Output]:
        """Record the kernel's outputs, except the last ``lose`` ones."""
        self._now_ns += SECOND_NS
        outputs = list(self._kernel.step(message, self._now_ns))
        if isinstance(message, Telemetry):
            self.writer.telemetry(encode_telemetry(message), self._now_ns)
        else:
            self.writer.event(message, self._now_ns, outputs[: len(outputs) - lose])
        return outputs

    def issue(self, command: str, worker: str, verb: str) -> None:
        """Record a command to a worker that this kernel has not issued."""
        self._now_ns += SECOND_NS
        fields = {"command": command, "worker": worker, "incarnation": 1}
        fields |= {"verb": verb, "cause": f"p{command}"}
        self.writer.event(Tick(), self._now_ns, [CommandStatus(**fields, status="issued")])


def record_epoch(root: Path, *, epoch: int = 1, lose: int = 0) -> None:
    """A worker joins, gets a knob set by a person, hangs, is dumped and exits."""
    recorder = Recorder(root, epoch)
    process = {"run": "run", "worker": "g0-0", "incarnation": 1}
    knobs = (KnobSpec(name="lr", kind="float"),)
    recorder.step(Recovered(epoch=epoch))
    recorder.step(
        Hello(**process, group="g0", rank=0, node="node7", knobs=knobs, values={"lr": 0.5})
    )
    recorder.step(Telemetry(**process, seq=1, state="training", step=3, progress_age_s=0.1))
    recorder.step(Tick())
    outputs = recorder.step(
        Request(id="r1", want=Propose(action=ChangeKnob(knob="lr", value=0.25)), by="alice"),
        lose=lose,
    )
    (command,) = [output.command for output in outputs if isinstance(output, Issue)]
    recorder.step(Ack(**process, command=command.id, epoch=epoch, status="applied", step=4))
    recorder.step(Request(id="r2", want=Propose(action=Migrate(group="g0"))))
    recorder.step(Request(id="r3", want=StopActions(), by="bob"))
    recorder.step(Note(**process, kind="hang", step=4))
    recorder.step(Exit(**process, status=-9, expected=False, step=4))
    recorder.writer.close()
