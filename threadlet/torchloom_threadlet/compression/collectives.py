"""The collectives of a codec, what each costs a rank to send, and several reductions at once.

A codec does no I/O: its ``reduce`` is a generator that yields a collective, receives the answer,
and returns the reduced tensor. :func:`drive` drives reductions over the network: while one's
collective is in flight, another one codes. All ranks must issue the same collectives in the same
order, so reductions take turns in a fixed order, whichever is done first: only the reported times
depend on timing. :func:`reduce_together` drives all ranks in one process.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Exchange:
    """Row ``i`` goes to rank ``i``; row ``i`` of the answer is from rank ``i``.

    ``rows``: contiguous bytes, of shape (ranks, bytes).
    """

    rows: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends: a row to each other rank."""
        return self.rows.numel() // ranks * (ranks - 1)


@dataclass(frozen=True)
class Gather:
    """The answer is (ranks, bytes): the rows of all ranks, in their order.

    ``row``: contiguous bytes, of shape (bytes,).
    """

    row: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends in a ring: all rows but one."""
        return self.row.numel() * (ranks - 1)


@dataclass(frozen=True)
class Sum:
    """The answer is the sum over the ranks, bitwise the same on all.

    ``tensor``: contiguous floats, which the sum may overwrite.
    """

    tensor: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends in a ring, reduced and then gathered."""
        return ring_bytes(self.tensor, ranks)


Collective = Exchange | Gather | Sum
Reduction = Generator[Collective, Tensor, _Result]
Issue = Callable[[Collective], tuple[Any, Tensor]]
"""Issues a collective; returns its work, and the tensor of the answer."""


@dataclass(frozen=True)
class Peers:
    """A rank among the ranks that it reduces with."""

    rank: int
    ranks: int


def ring_bytes(tensor: Tensor, ranks: int) -> int:
    """Return the bytes that a rank sends in a ring allreduce of ``tensor``."""
    return 2 * (ranks - 1) * tensor.numel() * tensor.element_size() // ranks


def reduce_together(reductions: Sequence[Reduction[_Result]]) -> list[_Result]:
    """Drive one reduction per rank, in lockstep, and return their results."""
    ranks, results = len(reductions), list[_Result]()
    answers: list[Tensor | None] = [None] * ranks
    while not results:
        collectives = []
        for reduction, answer in zip(reductions, answers, strict=True):
            try:
                collectives.append(next(reduction) if answer is None else reduction.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if len(collectives) != ranks and len(results) != ranks:
            raise ValueError(f"need a collective of all {ranks} ranks, was of {len(collectives)}")
        answers = _answers(collectives)
    return results


def _answers(collectives: Sequence[Collective]) -> list[Tensor | None]:
    ranks = range(len(collectives))
    exchanged = [each.rows for each in collectives if isinstance(each, Exchange)]
    gathered = [each.row for each in collectives if isinstance(each, Gather)]
    summed = [each.tensor for each in collectives if isinstance(each, Sum)]
    if exchanged:
        return [torch.stack([rows[rank] for rows in exchanged]) for rank in ranks]
    if gathered:
        return [torch.stack(gathered) for _ in ranks]
    return [torch.stack(summed).sum(0) for _ in ranks] if summed else []


@dataclass
class Driven(Generic[_Result]):
    """The outcome of some reductions.

    ``waited_s``: time with nothing to do but wait.
    ``wire_s``: time in which at least one collective was in flight.
    """

    results: list[_Result]
    waited_s: float = 0.0
    wire_s: float = 0.0


class Transfer(Protocol):
    """A collective of a reduction.

    ``issued``, ``ended``: by ``time.perf_counter``; 0 if the host does not see it.
    """

    @property
    def issued(self) -> float: ...  # noqa: D102

    @property
    def ended(self) -> float: ...  # noqa: D102

    def begin(self) -> None:
        """Issue it, unless it is issued; called in the same order on all ranks."""

    def wait(self) -> Tensor:
        """Wait for the answer, and return it."""


class Direct:
    """A collective of the host's memory, issued at once."""

    def __init__(self, collective: Collective, issue: Issue) -> None:
        self.issued, self.ended = time.perf_counter(), 0.0
        self._work, self._answer = issue(collective)
        self._work.get_future().add_done_callback(self._note_end)

    def begin(self) -> None:
        """Do nothing: it is issued."""

    def wait(self) -> Tensor:
        """Wait for the answer, and return it."""
        self._work.wait()
        self.ended = self.ended or time.perf_counter()
        return self._answer

    def _note_end(self, _: object) -> None:
        self.ended = time.perf_counter()


class Way(Protocol):
    """How reductions code and issue their collectives, which depends on the device."""

    def coding(self) -> AbstractContextManager[None]:
        """Measure what is coded meanwhile."""

    def carry(self, collective: Collective, issue: Issue) -> Transfer:
        """Issue a collective, or prepare to."""


class HostWay:
    """The way of reductions in the host's memory."""

    def coding(self) -> AbstractContextManager[None]:
        """Measure nothing: the time that is not waited is coding."""
        return nullcontext()

    def carry(self, collective: Collective, issue: Issue) -> Transfer:
        """Issue it at once."""
        return Direct(collective, issue)


_HOST = HostWay()


@dataclass
class _Flight(Generic[_Result]):
    """A reduction that waits for a collective."""

    place: int
    reduction: Reduction[_Result]
    transfer: Transfer


def drive(
    reductions: Sequence[Reduction[_Result]], issue: Issue, at_once: int, way: Way = _HOST
) -> Driven[_Result]:
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
            for flight in flying:
                flight.transfer.begin()
            flight = flying.popleft()
            transfer = flight.transfer
            looked = time.perf_counter()
            answer = transfer.wait()
            driven.waited_s += time.perf_counter() - looked
            # In the order of their issue, so that each adds only the time beyond the last.
            driven.wire_s += max(0.0, transfer.ended - max(transfer.issued, over_until))
            over_until = max(over_until, transfer.ended)
            place, reduction = flight.place, flight.reduction
        try:
            with way.coding():
                collective = next(reduction) if answer is None else reduction.send(answer)
        except StopIteration as stop:
            results[place] = stop.value
            continue
        flying.append(_Flight(place, reduction, way.carry(collective, issue)))
    driven.results = [results[place] for place in range(len(reductions))]
    return driven
