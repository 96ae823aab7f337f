"""The trainer's side of a capability: what a package that brings an operation imports.

An operation has one *part*, which carries it out in the trainer or in its sidecar. An entry point
in the group ``torchloom.trainer_capabilities`` names a tuple of parts; torchLoom's own are found
in the same way. The trainer and its sidecar both import the module, so it imports nothing heavy.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.links import Measured, ProbeAddress
from torchloom_core.wire.operations import Operation

__all__ = ["OperationError", "Sidecar", "SidecarPart", "Trainer", "TrainerPart"]

SAVE_S = 600.0
"""The bound of the named phase in which a script's function saves or rewinds, in seconds."""

_logger = logging.getLogger(__name__)
_Operation = TypeVar("_Operation", bound=Operation)


class OperationError(Exception):
    """Raise it where an operation fails for a known reason; its text, one line, is in the ack."""


class Trainer(msgspec.Struct, eq=False):
    """The trainer of this process, as a part sees it.

    Attributes
    ----------
    functions : tuple of callable
        What the script registered for the operation's verb with ``loom.on``.
    command : str
        The id of the command; empty where there is none, as in a fenced change.
    cause : str
        The verdict that granted the action; empty where there is none.
    deadline_ns : int
        When the command expires, as ``time.time_ns()``; 0 where there is no deadline.
    process : torchloom_threadlet.trainer.worker.Worker
        For torchLoom's own parts: it may change with any version.
    knobs_before : dict
        The values before :meth:`set_knobs`, which the fence may set back.
    """

    process: Any
    functions: tuple[Callable[..., Any], ...] = ()
    command: str = ""
    cause: str = ""
    deadline_ns: int = 0
    knobs_before: dict[str, KnobValue] = {}

    @property
    def worker(self) -> str:
        """The worker's id."""
        return str(self.process.identity.worker)

    @property
    def group(self) -> str:
        """Its replica group."""
        return str(self.process.identity.placement.group)

    @property
    def state(self) -> str:
        """Its state: joining, standby, training, paused, draining or left."""
        return str(self.process.state)

    @property
    def step(self) -> int:
        """The number of its last step, -1 before the first."""
        return int(self.process.whole_step)

    @property
    def knobs(self) -> dict[str, KnobValue]:
        """The knobs' values when last set or registered."""
        return dict(self.process.actuators.values)

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; infinite where there is none."""
        return (self.deadline_ns - time.time_ns()) / 1e9 if self.deadline_ns else math.inf

    def set_knobs(self, values: Mapping[str, KnobValue]) -> None:
        """Set run-fenced knobs, all or none: only in a fenced change, by a part that rolls back.

        Raises
        ------
        Exception
            What a function of the script's raised; the knobs are set back.
        """
        self.knobs_before = self.process.actuators.set_knobs(values)

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send an event to the Weaver: it is recorded, and policies get it."""
        self.process.note(kind, fields)

    def log(self, text: str) -> None:
        """Write a line to the trainer's own log."""
        _logger.warning("%s: %s", self.worker, text)

    def phase(self, name: str, at_most_s: float = SAVE_S) -> AbstractContextManager[None]:
        """Name work that takes longer than a step, so that it is no hang."""
        phase: AbstractContextManager[None] = self.process.phase(name, at_most_s)
        return phase


class TrainerPart(Generic[_Operation]):
    """Carries out one operation in the trainer, between two steps by default.

    What it raises is caught: the command fails with one line, and training continues.

    Attributes
    ----------
    operation : type
        The operation's message.
    need : str
        Why it is refused while the script has registered no function for its verb, in one line;
        empty: it needs none.
    fenced : {"never", "possible", "only"}
        Whether it can be part of a fenced change, which all ranks make at one step, and whether it
        can only be that.
    at_once : bool
        Whether it is done in the link's thread, though the training thread may be blocked.
    rolls_back : bool
        Whether it only sets knobs, by :meth:`Trainer.set_knobs`: if it fails on a rank, the fence
        sets all ranks' knobs back.
    loses_state : bool
        Whether a failed one leaves this rank without a valid state: it loads a peer's then.
    """

    operation: ClassVar[type[Operation]]
    need: ClassVar[str] = ""
    fenced: ClassVar[Literal["never", "possible", "only"]] = "never"
    at_once: ClassVar[bool] = False
    rolls_back: ClassVar[bool] = False
    loses_state: ClassVar[bool] = False

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether the worker's hello lists the verb now, among its ``actuators``."""
        return not self.need or bool(trainer.functions)

    def is_at_once(self, trainer: Trainer) -> bool:
        """Return whether it is done at once now."""
        return self.at_once

    def refusal(self, operation: _Operation, trainer: Trainer) -> str:
        """Return why it cannot be done now, in one line; "" if it can."""
        return "" if trainer.functions else self.need

    def do(self, operation: _Operation, trainer: Trainer) -> str:
        """Carry it out, and return the detail of the ack, "" if there is none."""
        raise NotImplementedError


class Sidecar(Protocol):
    """The sidecar of a trainer, as a part sees it."""

    @property
    def pid(self) -> int:
        """The process id of the trainer, the sidecar's parent."""

    @property
    def worker(self) -> str:
        """The worker's id."""

    stopped: Any
    """What a suspension has stopped, None while the trainer runs: for torchLoom's own parts."""

    def announce(self) -> None:
        """Report what the worker can do now."""

    @property
    def probe_address(self) -> ProbeAddress | None:
        """Where it accepts probes, None where it accepts none."""

    def note(self, kind: str, fields: Mapping[str, Any], /) -> None:
        """Send an event to the Weaver: it is recorded, and policies get it."""


class SidecarPart(Generic[_Operation]):
    """Carries out one operation in the sidecar, even while the trainer hangs; one at a time.

    What it raises is caught: the command fails with one line.

    Attributes
    ----------
    operation : type
        The operation's message.
    """

    operation: ClassVar[type[Operation]]

    def is_offered(self, sidecar: Sidecar) -> bool:
        """Return whether the worker's hello lists the verb now, among its ``actuators``."""
        return True

    def refusal(self, operation: _Operation, sidecar: Sidecar) -> str:
        """Return why it cannot be done now, in one line; "" if it can."""
        return ""

    async def do(self, operation: _Operation, sidecar: Sidecar) -> str | Measured:
        """Carry it out; return the detail of the ack, or the measurements of a link."""
        return ""

    async def finish(self, operation: _Operation, sidecar: Sidecar) -> None:
        """Do what follows once the broker has the ack, or after one second without an answer."""
