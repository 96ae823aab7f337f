"""Reasons why workers are at risk, computed on first access."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats

_EXPLAINED = 50
"""The most workers that get a reason."""


class Reasons(Mapping[int, str]):
    """Row to reason for workers above the prior, for the 50 most at risk at most.

    Computed on first access, as scoring does not need them.

    Parameters
    ----------
    rows : (judged,) intp
        Rows of the view with a probability.
    probability : (workers,) float64
        Of all workers.
    prior : float
        Share of positive training rows; a worker that is not above it is not at risk.
    explain : callable
        Returns a sentence for each of the given indices into ``rows``.

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
