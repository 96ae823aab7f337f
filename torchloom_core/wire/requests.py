"""What a person asks of the kernel, by command line, web page or plain ``nats req``."""

from typing import Annotated

import msgspec

from torchloom_core.wire.actions import Action
from torchloom_core.wire.limits import (
    MAX_TEXT,
    Id,
    KnobName,
    SessionName,
    ShortText,
    Target,
)
from torchloom_core.wire.messages import RECONCILE

PERSON = "person"
"""The policy name under which a person's own requests are recorded."""

GUARD = "guard"
"""The policy name under which the Weaver takes back what hurt."""

UNWEIGHED = frozenset({PERSON, GUARD, RECONCILE})
"""Whose proposals are not weighed against doing nothing."""


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="propose"):
    """A person wants an action, and is ``sure`` of a value that is far from those in use."""

    action: Action
    sure: bool = False


class StopActions(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="stop_actions"):
    """The kill switch: no action is granted or carried on until actions are resumed."""


class ResumeActions(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="resume_actions"
):
    """Release the kill switch."""


class Approve(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="approve"):
    """A person approves a proposal that waits for it."""

    proposal: Id


class Deny(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="deny"):
    """A person denies a proposal that waits for approval, and may say why."""

    proposal: Id
    reason: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""


class ForgetKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="forget_knob"):
    """A person no longer wants a knob's value, on one worker or, when ``worker`` is None, on any.

    Nothing is commanded, so this can be said at any time: of a knob that no worker has now, and
    while actions are stopped.
    """

    knob: KnobName
    worker: Target | None = None


class Annotate(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="annotate"):
    """A person has something to say, for the record; nothing is done."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class TakeControl(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="take_control"):
    """A session takes the control lease for ``lease_s``, or renews it.

    With ``force`` it is taken from the session that holds it.
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

    ``by`` is the person's name, as their credentials say it. ``sent_as`` is that and the id
    which they gave the request, if any: sent again under the same one it is answered as before,
    and not done again. ``session`` is who sits at a web page that has these credentials: such a
    request is granted only while that session has control, but for the kill switch.
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
