"""A suspension of the run or of a role, as it is recorded, stored and shown."""

from typing import Literal

import msgspec

from torchloom_core.wire.operations import Depth


class SuspensionChanged(msgspec.Struct, frozen=True, kw_only=True, tag="suspension"):
    """A role is suspended from now on, is being resumed, or trains again.

    Attributes
    ----------
    role : str
        The role that it concerns; empty: all of the run.
    depth : {"frozen", "parked", "stored"}
        What is left of it.
    state : {"suspended", "resuming", "over"}
        Whether it has ended. It is being resumed until its workers train again.
    step : int
        The last step that was done; -1: unknown.
    since_ns : int
        When it began.
    verdict : str
        The verdict that granted it; empty: a Weaver before this one suspended it.
    by : str
        The policy that proposed it; ``person``: somebody else did.
    workers : tuple of (str, int)
        The workers, with their incarnations, that were suspended.
    why : str
        Why it ended by itself; empty: it was resumed.
    """

    role: str
    depth: Depth
    state: Literal["suspended", "resuming", "over"]
    step: int = -1
    since_ns: int = 0
    verdict: str = ""
    by: str = ""
    workers: tuple[tuple[str, int], ...] = ()
    why: str = ""


def key_of(suspension: SuspensionChanged) -> str:
    """Return the key of a suspension in the stored state."""
    return f"role.{suspension.role}" if suspension.role else "all"
