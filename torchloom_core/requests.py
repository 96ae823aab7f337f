"""What a person asks of the kernel, by command line, web page or plain ``nats req``."""

import msgspec

from torchloom_core.actions import Action


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="propose"):
    """A person wants an action."""

    action: Action


class StopActions(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="stop_actions"):
    """The kill switch: no action is granted or carried on until actions are resumed."""


class ResumeActions(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="resume_actions"
):
    """Release the kill switch."""


class Approve(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="approve"):
    """A person approves a proposal that waits for it."""

    proposal: str


class ForgetKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="want", tag="forget_knob"):
    """A person no longer wants a knob's value, on one worker or, when ``worker`` is None, on any.

    Nothing is commanded, so this can be said at any time: of a knob that no worker has now, and
    while actions are stopped.
    """

    knob: str
    worker: str | None = None


Want = ForgetKnob | Propose | StopActions | ResumeActions | Approve


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A person's request to the Weaver, by command line, web page or plain ``nats req``."""

    id: str
    want: Want
    by: str = ""
