"""What a worker's commands do: decided and done by the parts of the installed capabilities."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.commands import Command
from torchloom_core.wire.limits import MAX_TEXT, KnobValue
from torchloom_core.wire.operations import FencedChange, Operation, Withdraw, WriteLog
from torchloom_threadlet.capability import OperationError, Trainer, TrainerPart
from torchloom_threadlet.cleaning import error_line, text, warn_once
from torchloom_threadlet.installed_parts import (
    guarded,
    installed_parts,
    is_own,
    offered,
    verb_of,
)


class FencedChangePart(TrainerPart[FencedChange]):
    """Holds a change until all ranks have agreed on a step."""

    operation = FencedChange

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether this rank can agree with the others."""
        return bool(trainer.process.changes.can_vote)

    def refusal(self, operation: FencedChange, trainer: Trainer) -> str:
        """Refuse what this rank could not do at the step agreed on."""
        if not self.is_offered(trainer):
            return "this worker cannot agree with other ranks: no framework adapter is attached"
        return str(trainer.process.operations.fenced_refusal(operation.do, trainer.cause))


class WithdrawPart(TrainerPart[Withdraw]):
    """Withdraws the change, though the training thread may be blocked."""

    operation = Withdraw
    at_once = True

    def is_offered(self, trainer: Trainer) -> bool:
        """Return False: that a worker takes part in fenced changes implies it."""
        return False

    def do(self, operation: Withdraw, trainer: Trainer) -> str:
        """Never agree to it."""
        trainer.process.changes.withdraw(operation.number)
        return ""


class WriteLogPart(TrainerPart[WriteLog]):
    """Writes to the trainer's own log."""

    operation = WriteLog
    at_once = True

    def do(self, operation: WriteLog, trainer: Trainer) -> str:
        """Write."""
        trainer.log(operation.text)
        return ""


_OWN = (FencedChangePart(), WithdrawPart(), WriteLogPart())


class Operations:
    """Decides on one worker's operations and does them.

    The link's thread and the training thread call it, without the worker's lock: a function of the
    user's may be slow.
    """

    def __init__(self, process: Any) -> None:
        self._process = process

    @cached_property
    def _parts(self) -> Mapping[str, TrainerPart[Any]]:
        found = {v: part for v, part in installed_parts().items() if isinstance(part, TrainerPart)}
        return found | {verb_of(part.operation): part for part in _OWN}

    def part(self, operation: Operation) -> TrainerPart[Any]:
        """Return the part of an operation.

        Raises OperationError if no installed package has one.
        """
        verb = verb_of(operation)
        try:
            return self._parts[verb]
        except KeyError:
            raise OperationError(
                f"unknown operation {verb!r}: no installed package carries it out in a trainer"
            ) from None

    def add_function(self, verb: str, function: Callable[..., object]) -> None:
        """Register a script's function; warn if no installed package has such an operation."""
        self._process.actuators.add_function(verb, function)
        if self._process.linked and verb not in self._parts:
            unknown = f"no installed package has this operation{nearest(verb, self._parts)}"
            warn_once(f"loom.on({verb!r})", unknown)

    def offered(self) -> tuple[str, ...]:
        """Return the verbs that this worker can do now."""
        parts = self._parts.items()
        return offered(
            {verb: partial(part.is_offered, self._trainer(verb)) for verb, part in parts}
        )

    def refusal(self, command: Command) -> str:
        """Return why a command cannot be carried out now, in one line; "" if it can."""
        operation = command.do
        try:
            part = self.part(operation)
            if part.fenced == "only":
                return f"{verb_of(operation)} needs all ranks: send it as a fenced change"
            return self._refusal(part, operation, self._for(command))
        except Exception as error:  # noqa: BLE001 - the code of anyone's package
            return error_line(error)

    def fenced_refusal(self, operation: Operation, cause: str) -> str:
        """Return why an operation cannot be part of a fenced change here; "" if it can.

        Raises OperationError if no installed package has a part for it.
        """
        part = self.part(operation)
        if part.fenced == "never":
            return f"{verb_of(operation)} cannot be part of a fenced change"
        refusal = self._refusal(part, operation, self._trainer(verb_of(operation), cause=cause))
        if not refusal and self._process.state == "standby" and not part.rolls_back:
            return "the worker is a standby"
        return refusal

    def _refusal(self, part: TrainerPart[Any], operation: Operation, trainer: Trainer) -> str:
        if self._process.state == "left":
            return "the worker has left"
        with guarded(part):
            refusal = part.refusal(operation, trainer)
        if not isinstance(refusal, str):
            was = type(refusal).__name__
            raise OperationError(f"{verb_of(operation)}: need a text from refusal, was {was}")
        return refusal

    def is_at_once(self, command: Command) -> bool:
        """Return whether the link's thread carries out an accepted command."""
        try:
            part = self.part(command.do)
            with guarded(part):
                return bool(part.is_at_once(self._for(command)))
        except Exception:  # noqa: BLE001 - the code of anyone's package
            return False

    def may_block(self, command: Command) -> bool:
        """Return whether another package's part carries it out, which may take any time."""
        return not is_own(self.part(command.do))

    def can_be_fenced(self, command: Command) -> bool:
        """Return whether other ranks may do the same, so that the step agreed on is of interest."""
        part = self._parts.get(verb_of(command.do))
        return part is not None and part.fenced != "never"

    def do(self, command: Command) -> str:
        """Carry out a command; return the detail for its ack, if any."""
        part = self.part(command.do)
        with guarded(part):
            return _detail(part.do(command.do, self._for(command)))

    def make(self, operation: Operation, cause: str) -> tuple[str, Mapping[str, KnobValue]]:
        """Make a fenced change; return the detail, and the values before of knobs it has set."""
        trainer = self._trainer(verb_of(operation), cause=cause)
        part = self.part(operation)
        with guarded(part):
            detail = _detail(part.do(operation, trainer))
        return detail, trainer.knobs_before

    def _for(self, command: Command) -> Trainer:
        verb = verb_of(command.do)
        return self._trainer(verb, command.id, command.cause, command.deadline_ns)

    def _trainer(
        self, verb: str, command: str = "", cause: str = "", deadline_ns: int = 0
    ) -> Trainer:
        functions = self._process.actuators.functions(verb)
        return Trainer(self._process, functions, command, cause, deadline_ns)


def _detail(found: Any) -> str:
    """Return what a part's ``do`` returned as the detail of an ack."""
    return "" if found is None else text(found, MAX_TEXT)
