"""Reasons why workers are at risk, and durations and counts, as text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.view import FleetView


def in_words(seconds: float) -> str:
    """Return a duration as text in a readable unit.

    Examples
    --------
    >>> from torchloom_core.lab.learning import in_words
    >>> in_words(604800.0), in_words(5400.0), in_words(45.0), in_words(432000000.0)
    ('7 d', '1.5 h', '45 s', '5000 d')
    """
    for unit, least_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= least_s:
            return f"{float(f'{seconds / least_s:.3g}'):g} {unit}"
    return f"{seconds:.3g} s"


def faults_in_words(faults: float, memory_s: float) -> str:
    """Return a count of faults in the time of :func:`known_s` as text.

    Examples
    --------
    >>> from torchloom_core.lab.learning import faults_in_words
    >>> faults_in_words(1.0, 86_400.0)
    '1 fault in the last 1 d'
    """
    return f"{faults:.0f} fault{'' if faults == 1 else 's'} in the last {in_words(memory_s)}"


def known_s(view: FleetView, memory_s: float) -> float:
    """Return for how long faults have been recorded, at most ``memory_s``, in seconds.

    That is since the first sample or the first fault, whichever was earlier.

    Examples
    --------
    >>> from torchloom_core.lab.learning import known_s
    >>> from torchloom_core.plugin import Fault
    >>> from torchloom_core.testing import view_of
    >>> fault = Fault(worker="", node="n0", kind="xid", ts_ns=1_700_000_000 * 10**9, id="f1")
    >>> view = view_of(workers=1, now_s=1_700_000_000.0 + 16 * 86_400.0, faults=[fault])
    >>> known_s(view, 86_400.0) / 86_400, known_s(view, 432_000_000.0) / 86_400
    (1.0, 16.0)
    """
    first_s = np.fmax.reduce(view.watched_s, initial=np.nan)
    if view.faults:
        first_s = np.fmax(first_s, (view.now_ns - view.faults[0].ts_ns) / SECOND_NS)
    return float(np.fmin(first_s, memory_s))


_EXPLAINED = 50
"""The most workers that get a reason."""


class Reasons(Mapping[int, str]):
    """Row to reason for workers above the prior, for the 50 most at risk at most.

    Computed on first access, as scoring does not need them. ``rows`` of the view have a
    probability, which is ``(workers,)``; a worker not above ``prior``, the share of positive
    training rows, is not at risk. ``explain`` returns a sentence for each index into ``rows``.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Reasons
    >>> celsius = np.array([60.0, 95.0])
    >>> def explain(at):
    ...     return [f"{degrees:.0f} degrees" for degrees in celsius[at]]
    >>> rows, probability = np.array([0, 2]), np.array([0.01, np.nan, 0.6])
    >>> dict(Reasons(rows, probability, prior=0.05, explain=explain))
    {2: '95 degrees'}
    """

    def __init__(
        self,
        rows: NDArray[np.intp],
        probability: Floats,
        prior: float,
        explain: Callable[[NDArray[np.intp]], Sequence[str]],
    ) -> None:
        self._rows = rows
        self._judged = probability[rows]
        self._prior = prior
        self._explain = explain

    def __getitem__(self, row: int) -> str:
        return self._found[row]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def _found(self) -> dict[int, str]:
        order = np.argsort(-self._judged, kind="stable")[:_EXPLAINED]
        at_risk = order[self._judged[order] > self._prior]
        return dict(zip(self._rows[at_risk].tolist(), self._explain(at_risk), strict=True))
