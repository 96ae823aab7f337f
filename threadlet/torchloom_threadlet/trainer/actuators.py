"""What can be done to a worker: its knobs, and the functions for a checkpoint or a drain."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.knobs import check_value, find_spec
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import WorkerState
from torchloom_core.wire.operations import (
    Checkpoint,
    Cut,
    FencedChange,
    Join,
    Operation,
    Pause,
    Prepare,
    Rehearse,
    Resume,
    Rewind,
    SetKnob,
    SetKnobs,
    StandbyTask,
    Survey,
)
from torchloom_threadlet.trainer.knob_table import KnobTable
from torchloom_threadlet.trainer.standby_tasks import StandbyTasks, verb_of


class Connections(Protocol):
    """The connections to peers, as an adapter knows them."""

    def refusal(self, quorum_id: int) -> str:
        """Return why the connections of this quorum cannot be shut down; "" if they can."""

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of this quorum only; return what was done."""


_Function = TypeVar("_Function", bound=Callable[..., object])


def _name(function: Callable[..., object]) -> tuple[object, ...]:
    """Return what identifies a function when its definition runs again."""
    name = getattr(function, "__qualname__", None)
    return (getattr(function, "__module__", None), name) if name else (function,)


class Actuators(KnobTable):
    """The knobs and callbacks that a trainer has registered so far.

    Attributes
    ----------
    prepared : bool
        Whether a standby has gone on to wait in its Manager.
    """

    def __init__(
        self,
        *,
        standby: bool,
        held: bool,
        can_agree: Callable[[], bool],
        standby_tasks: StandbyTasks | None = None,
    ) -> None:
        super().__init__()
        self.can_agree = can_agree
        self.standby_tasks = standby_tasks or {}
        self._standby = standby
        self._held = held
        self.prepared = False
        self.checkpoint: list[Callable[[], object]] = []
        self.drain: list[Callable[[], object]] = []
        self.rewind: list[Callable[[int], object]] = []
        self.connections: Connections | None = None
        self._earlier: list[Callable[..., object]] = []

    def add_function(self, functions: list[_Function], function: _Function) -> None:
        """Register a function; it replaces one of its name from before :meth:`attach_again`."""
        stale = [f for f in functions if f in self._earlier and _name(f) == _name(function)]
        functions[:] = [f for f in functions if f not in stale]
        functions.append(function)

    def attach_again(self) -> None:
        """Note that the script, or a cell of a notebook, may run again from its beginning."""
        self._earlier = [*self.checkpoint, *self.drain, *self.rewind]

    @property
    def names(self) -> tuple[str, ...]:
        """The verbs that this worker carries out."""
        names = ["drain", "pause", "resume", "dump", "terminate", "write_log"]
        if self._knobs:
            names.append("set_knob")
        if self.can_agree():
            names.append("fenced_change")
        if self.rewind:
            names.append("rewind")
        if self.checkpoint:
            names.append("checkpoint")
        if self.connections is not None:
            names.append("cut")
        if self._standby:
            names.append("join")
            if self._held:
                names.append("prepared" if self.prepared else "prepare")
            names += map(verb_of, self.standby_tasks)
        return tuple(names)

    @property
    def tries(self) -> tuple[str, ...]:
        """The knobs whose changes it can try in a preview."""
        return tuple(name for runner in self.standby_tasks.values() for name in runner.tries)

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of a quorum; return what was done."""
        return self.connections.cut(quorum_id) if self.connections else ""

    def refusal(self, operation: Operation, state: WorkerState) -> str | None:
        """Return why ``operation`` cannot be done in ``state``, or None if it can."""
        if state == "left":
            return "the worker has left"
        match operation:
            case SetKnob(knob=name, value=value):
                return self._knob_refusal(name, value)
            case Checkpoint() if not self.checkpoint:
                return "need a function to save: call loom.on_checkpoint(save) in the script"
            case Prepare() if state != "standby" or "prepare" not in self.names:
                return "need a standby that waits in attach(held=True)"
            case Join() if state != "standby":
                return f"need a standby, the worker is {state}"
            case Pause() | Resume() if state == "standby":
                return "the worker is a standby"
            case FencedChange() if not self.can_agree():
                return "this worker cannot agree with other ranks: no framework adapter is attached"
            case FencedChange(do=SetKnobs(values=values)):
                return self.knobs_refusal(values)
            case FencedChange(do=Rewind()) if not self.rewind:
                return "need a function to rewind: call loom.on_rewind(rewind) in the script"
            case FencedChange() if state == "standby":
                return "the worker is a standby"
            case Survey() | Rehearse() if not operation.ends_task:
                return self._standby_task_refusal(operation, state)
            case Cut(quorum_id=quorum_id):
                return self._cut_refusal(quorum_id)
        return None

    def _cut_refusal(self, quorum_id: int) -> str | None:
        if self.connections is None:
            return "no framework adapter knows the connections of a quorum"
        return self.connections.refusal(quorum_id) or None

    def _standby_task_refusal(self, standby_task: StandbyTask, state: WorkerState) -> str | None:
        if state != "standby":
            return f"need a standby, the worker is {state}"
        runner = self.standby_tasks.get(type(standby_task))
        if runner is None:
            return (
                f"the script offers no {standby_task.note}: pass {standby_task.note}= to attach()"
            )
        return runner.refusal(standby_task)

    def _knob_refusal(self, name: str, value: KnobValue) -> str | None:
        try:
            spec = find_spec(name, self.specs)
            check_value(spec, value)
        except KnobError as error:
            return str(error)
        if spec.fence == "run":
            return f"knob {name} is run-fenced: it cannot be changed on one worker alone"
        return None
