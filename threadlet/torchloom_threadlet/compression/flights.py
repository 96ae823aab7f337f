"""Several reductions at once: while one's collective is in flight, another one codes.

All ranks must issue the same collectives in the same order. So reductions take turns in a fixed
order, whichever is done first: only the reported times depend on timing.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from torchloom_threadlet.compression.collectives import Collective, Reduction

_Result = TypeVar("_Result")
Issue = Callable[[Collective], tuple[Any, Tensor]]
"""Issues a collective; returns its work, and the tensor of the answer."""


@dataclass
class Driven(Generic[_Result]):
    """The outcome of some reductions.

    ``waited_s``: time with nothing to do but wait.
    ``wire_s``: time in which at least one collective was in flight.
    """

    results: list[_Result]
    waited_s: float = 0.0
    wire_s: float = 0.0


class _Flight(Generic[_Result]):
    """A reduction whose collective is in flight."""

    def __init__(
        self, place: int, reduction: Reduction[_Result], work: Any, answer: Tensor, issued: float
    ) -> None:
        self.place, self.reduction, self.answer = place, reduction, answer
        self.issued, self.ended = issued, 0.0
        self._work = work
        if answer.device.type == "cpu":  # elsewhere the host does not see the end
            work.get_future().add_done_callback(self._note_end)

    def wait(self) -> None:
        """Wait for the collective."""
        self._work.wait()
        self.ended = self.ended or time.perf_counter()

    def _note_end(self, _: object) -> None:
        self.ended = time.perf_counter()


def drive(reductions: Sequence[Reduction[_Result]], issue: Issue, at_once: int) -> Driven[_Result]:
    """Drive reductions, so many at once, and return their results.

    Raises what a collective raises; none is issued after it.
    """
    results: dict[int, _Result] = {}
    waiting = deque(enumerate(reductions))
    flying: deque[_Flight[_Result]] = deque()
    driven: Driven[_Result] = Driven([])
    over_until = 0.0
    while waiting or flying:
        answer: Tensor | None = None
        if waiting and len(flying) < at_once:
            place, reduction = waiting.popleft()
        else:
            flight = flying.popleft()
            looked = time.perf_counter()
            flight.wait()
            driven.waited_s += time.perf_counter() - looked
            # In the order of their issue, so that each adds only the time beyond the last.
            driven.wire_s += max(0.0, flight.ended - max(flight.issued, over_until))
            over_until = max(over_until, flight.ended)
            place, reduction, answer = flight.place, flight.reduction, flight.answer
        try:
            collective = next(reduction) if answer is None else reduction.send(answer)
        except StopIteration as stop:
            results[place] = stop.value
            continue
        issued = time.perf_counter()
        flying.append(_Flight(place, reduction, *issue(collective), issued))
    driven.results = [results[place] for place in range(len(reductions))]
    return driven
