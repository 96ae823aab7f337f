"""A command to one worker, and its acknowledgement."""

from typing import Literal

import msgspec

from torchloom_core.wire.limits import (
    Count,
    Id,
    KnobValues,
    Name,
    ShortText,
    Stamp,
    Step,
    Text,
    Version,
)
from torchloom_core.wire.links import Measured
from torchloom_core.wire.messages import SCHEMA_VERSION
from torchloom_core.wire.operations import Operation

RECONCILE = "reconcile"
"""The cause of commands that set values that were desired before the worker joined."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command", omit_defaults=True):
    """One operation for one incarnation of one worker, to be done exactly once.

    A Threadlet rejects it if ``incarnation`` is not its own, if it has seen a higher
    ``epoch``, or after ``deadline_ns``; a repeated ``id`` gets the same answer again.
    """

    id: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count
    issued_ns: Stamp
    deadline_ns: Stamp
    do: Operation
    cause: ShortText = ""
    v: Version = SCHEMA_VERSION


AckStatus = Literal["delivered", "accepted", "applied", "rejected", "failed", "expired"]
"""``delivered``: the sidecar has it; ``accepted``: the trainer will do it at its next step
boundary; the others are final."""

FINAL_STATUSES: frozenset[str] = frozenset({"applied", "rejected", "failed", "expired"})


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """The status of a command, reported by its Threadlet.

    ``epoch`` is that of the copy of the command: a restarted Weaver sends commands in flight
    again under its own epoch. ``measured`` is the result of a probe, ``before`` the values that a
    change of run-fenced knobs has replaced: a schedule may have moved them since they were set.
    """

    command: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count
    status: AckStatus
    step: Step = -1
    detail: Text = ""
    measured: Measured | None = None
    before: KnobValues | None = None
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION
