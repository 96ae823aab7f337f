"""The messages by which a Weaver decides on the planned changes of a rendezvous.

A planned change is one that no death calls for: workers are asked to stop for another assignment
together, with the vote that commits a step.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.limits import Count, Id, Name, OptionalId, Seconds, ShortText


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment that would make steps faster, and what it takes to change to it.

    Attributes
    ----------
    why : str
        What changes.
    step_s, present_step_s : float
        Estimated time of a step with it, and with the present assignment.
    stall_s : float
        From the last step before to the first one after it.
    copied_bytes : float
        Layers that workers send to each other.
    """

    why: ShortText
    step_s: Seconds
    present_step_s: Seconds
    stall_s: Seconds
    copied_bytes: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Change(msgspec.Struct, frozen=True, kw_only=True, tag="change"):
    """Change to another assignment if ``generation`` is still the present one.

    Attributes
    ----------
    id : str
        Comes back in the answer.
    without : tuple of str
        All workers that have no part from now on, until they are started again or a later change
        does not name them; the cheapest assignment of the others follows.
    """

    id: Id
    generation: Count
    without: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)] = ()
    why: ShortText = ""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the last change: ``asked`` of the workers, ``done``, or ``refused``."""

    id: OptionalId = ""
    state: Literal["asked", "done", "refused"] = "done"
    why: ShortText = ""
