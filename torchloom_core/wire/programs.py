"""A program that is split over workers, as its rendezvous reports it to the Weaver."""

import msgspec

from torchloom_core.wire.generations import Outlook
from torchloom_core.wire.limits import Count, Int64, Name, Seconds, ShortText
from torchloom_core.wire.planned_changes import Change


class ProgramSeen(msgspec.Struct, frozen=True, kw_only=True, tag="program_seen"):
    """The state of a role's rendezvous: an input of the kernel.

    Attributes
    ----------
    outlook : Outlook, optional
        None while the rendezvous cannot be reached.
    is_update : bool
        Whether only measurements have changed: ``outlook`` then has neither assignment nor program.
    """

    role: Name
    outlook: Outlook | None = None
    is_update: bool = False


class ChangeWanted(msgspec.Struct, frozen=True, kw_only=True, tag="change_wanted"):
    """Send a change to the rendezvous of a role: an output of the kernel."""

    role: Name
    change: Change


class GenerationSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A generation as the Weaver has seen it begin.

    ``took_s`` is how long its workers waited for it, after ``cause``, such as a death; an empty
    cause: it was planned.
    """

    number: Count
    began_ns: Int64
    why: ShortText = ""
    cause: ShortText = ""
    took_s: Seconds = 0.0
    committed: int = -1


class ProgramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A program in a status; ``outlook`` is the last one known."""

    role: Name
    reachable: bool
    outlook: Outlook
    generations: tuple[GenerationSeen, ...] = ()
