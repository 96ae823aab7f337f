"""How records refer to each other: the id, cause and worker of every message.

An output also follows from the input with the same ``seq``. The ids of exits and notes are
those of :class:`~torchloom_core.wire.events.Fault`, on which proposals rest.
"""

from typing import NamedTuple

from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import (
    CommandStatus,
    ForecastWanted,
    Issue,
    KnobDesired,
    Notice,
    Outcome,
    Output,
    Proposed,
    Reply,
    Verdict,
    Withdrawal,
)
from torchloom_core.wire.events import DeliveryStatus, Forecast, Input, NodeFault
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.requests import Approve, Deny, Propose, Request


class Links(NamedTuple):
    """The three columns by which records are joined; empty if not applicable."""

    id: str = ""
    cause: str = ""
    worker: str = ""


_NONE = Links()


def links_of(message: Input | Output) -> Links:
    """Return the columns of one message."""
    match message:
        case Hello() | Notice():
            return Links(worker=message.worker)
        case Exit(worker=worker, incarnation=incarnation):
            return Links(id=f"{worker}/exit:{incarnation}", worker=worker)
        case Note(worker=worker, kind=kind, ts_ns=ts_ns):
            return Links(id=f"{worker}/{kind}:{ts_ns}", worker=worker)
        case DeliveryStatus(delivery=id) | NodeFault(id=id):
            return Links(id=id)
        case Ack() | Withdrawal():
            return Links(cause=message.command, worker=message.worker)
        case Forecast() | ForecastWanted():
            return Links(id=message.id)
        case Request(id=id, want=Approve(proposal=proposal) | Deny(proposal=proposal)):
            return Links(id=id, cause=proposal)
        case Request(id=id, want=Propose(action=action)):
            return Links(id=id, worker=_worker_of(action))
        case Request():
            return Links(id=message.id)
        case Proposed(id=id, proposal=proposal):
            return Links(id, " ".join(proposal.cause), _worker_of(proposal.action))
        case Verdict(proposal=cause, action=action) | Outcome(verdict=cause, action=action):
            return Links(cause=cause, worker=_worker_of(action))
        case CommandStatus():
            return Links(message.command, message.cause, message.worker)
        case Issue(command=command):
            return Links(command.id, command.cause, command.worker)
        case KnobDesired():
            return Links(worker=message.worker or "")
        case Reply():
            return Links(cause=message.request)
        case _:
            return _NONE


def _worker_of(action: Action) -> str:
    return kind_of(action).subject(action).worker
