"""How the fleet model carries out one kind of action."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torchloom_core.floor.errors import PluginError, TorchloomError
from torchloom_core.interface.foreign import one_line
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.capabilities import OWN, find_part, installed
from torchloom_core.wire.operations import Operation

OfGroup = Callable[[FleetModel, str], str]
"""``(model, group)`` does an operation for a replica group; returns "" or why it was not done."""

OfRun = Callable[[FleetModel, Any], str]
"""``(model, operation)`` does an operation for the whole run; returns "" or why it was not done."""


def nothing(model: FleetModel, action: Any) -> None:
    """Leave the fleet as it is."""


@dataclass(frozen=True)
class FleetAnswer:
    """The fleet model's implementation of one kind of action.

    ``of_group`` and ``of_run`` have the implementation of each operation: called once for all
    workers of a group, or of the run, that get it for the same cause. ``done(model, action)`` is
    called when the Weaver has carried out the action without commands.
    """

    of_group: Mapping[type[Any], OfGroup] = field(default_factory=dict)
    of_run: Mapping[type[Any], OfRun] = field(default_factory=dict)
    done: Callable[[FleetModel, Any], None] = nothing


@cache
def answer_of(name: str) -> FleetAnswer:
    """Return the answer to a kind of action; without one, its operations are refused."""
    module = find_part(name, "answer")
    answer = FleetAnswer() if module is None else getattr(module, "ANSWER", None)
    if not isinstance(answer, FleetAnswer):
        raise PluginError(f"capability {name}: need ANSWER in its module answer, a FleetAnswer")
    return answer


@contextmanager
def answering(name: str) -> Iterator[None]:
    """Name the capability of another package whose answer raises, in a PluginError."""
    try:
        yield
    except TorchloomError:
        raise
    except Exception as error:
        if installed()[name].startswith(OWN):
            raise
        raise PluginError(f"capability {name}: answer: {one_line(error)}") from None


@cache
def brought_verbs() -> tuple[str, ...]:
    """Return the verbs of answered operations that are in no module of torchLoom's own."""
    answers = [answer_of(name) for name in installed()]
    answered = (operation for answer in answers for operation in (*answer.of_group, *answer.of_run))
    brought = {
        one.__struct_config__.tag for one in answered if one.__module__ != Operation.__module__
    }
    return tuple(sorted(brought))
