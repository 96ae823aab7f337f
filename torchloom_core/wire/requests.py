"""Requests of people to the kernel, by command line, web page or plain ``nats req``."""

from typing import Annotated

import msgspec

from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import RECONCILE
from torchloom_core.wire.limits import (
    MAX_TEXT,
    Id,
    KnobName,
    RoleName,
    SessionName,
    ShortText,
    Target,
)

PERSON = "person"
"""The policy name under which a person's own requests are recorded."""

GUARD = "guard"
"""The policy name under which the Weaver rolls back a change that made the run worse."""

UNWEIGHED = frozenset({PERSON, GUARD, RECONCILE})
"""The policies whose proposals need no net gain."""


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="propose"):
    """A person proposes an action; ``sure`` confirms a value that is far from those in use."""

    action: Action
    sure: bool = False


class StopActions(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="stop_actions"):
    """Turn the kill switch on: no action is granted or continued until actions are resumed."""


class ResumeActions(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="resume_actions"
):
    """Turn the kill switch off."""


class Approve(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="approve"):
    """A person approves a waiting proposal."""

    proposal: Id


class Deny(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="deny"):
    """A person denies a proposal that waits for approval, with an optional reason."""

    proposal: Id
    reason: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""


class ForgetKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="forget_knob"):
    """Drop the desired value of a knob, on one worker or, when ``worker`` is None, on all.

    With ``role`` on all of that role; without, only one role may have a desired value.

    No command is sent, so this is possible at any time: for a knob that no worker has now, and
    while actions are stopped.
    """

    knob: KnobName
    worker: Target | None = None
    role: RoleName | msgspec.UnsetType = msgspec.UNSET


class Annotate(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="annotate"):
    """A person adds a text to the record."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class TakeControl(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="take_control"):
    """A session takes the control lease for ``lease_s``, or renews it.

    With ``force`` it is taken from the session that has it.
    """

    lease_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    force: bool = False


class ReleaseControl(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="release_control"
):
    """A session releases the control lease."""


Want = (
    ForgetKnob
    | Propose
    | StopActions
    | ResumeActions
    | Approve
    | Deny
    | Annotate
    | TakeControl
    | ReleaseControl
)


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A person's request to the Weaver, by command line, web page or plain ``nats req``.

    ``by`` is the person's name in the credentials. ``sent_as`` is that name and the sender's id of
    the request, if any: a request that is sent again with the same id gets the same answer and is
    not done again. ``session`` is the web page that sent it with these credentials: except for
    the kill switch, such a request is granted only while that session has control.
    """

    id: Id
    want: Want
    sent_as: ShortText = ""
    by: ShortText = "a person"
    session: SessionName = ""

    @property
    def requester(self) -> str:
        """The sender, for people: the name entered at a web page, then that of the credentials."""
        return f"{self.session.partition('.')[0]} ({self.by})" if self.session else self.by
