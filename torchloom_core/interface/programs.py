"""A program that is split over workers, as policies see it."""

from typing import NamedTuple

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.generations import Outlook
from torchloom_core.wire.planned_changes import Offer
from torchloom_core.wire.programs import GenerationSeen


class SplitProgram(NamedTuple):
    """A role's program that is split over workers.

    Attributes
    ----------
    role : str
        The role.
    outlook : Outlook
        The last known state of its rendezvous.
    is_reachable : bool
        Whether the rendezvous can be reached.
    since_ns : int
        When the Weaver saw it first.
    offered_ns : int
        Since when the rendezvous offers a planned change; 0: it offers none.
    generations : tuple of GenerationSeen
        The last generations, oldest first.

    Examples
    --------
    >>> from torchloom_core.plugin import SplitProgram
    >>> from torchloom_core.wire.generations import Outlook
    >>> SplitProgram("trainer", Outlook(phase="forming")).offer is None
    True
    """

    role: str
    outlook: Outlook
    is_reachable: bool = True
    since_ns: int = 0
    offered_ns: int = 0
    generations: tuple[GenerationSeen, ...] = ()

    @property
    def offer(self) -> Offer | None:
        """The planned change that the rendezvous would make."""
        return self.outlook.offer if self.is_reachable else None

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that have a part."""
        return self.outlook.assignment.workers if self.outlook.assignment else ()

    def mean_life_s(self, now_ns: int) -> float:
        """Return how long the membership is expected to last, seconds.

        It is the time watched over one more than the unplanned changes in it.
        """
        changes = sum(bool(one.cause) for one in self.generations)
        return (now_ns - self.since_ns) / SECOND_NS / (changes + 1)
