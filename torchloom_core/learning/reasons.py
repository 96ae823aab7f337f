"""Why workers are at risk, found once somebody asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats

_EXPLAINED = 50
"""So many workers, those most at risk, are given a reason."""


class Reasons(Mapping[int, str]):
    """Row to reason for those above the prior, the 50 most at risk at the most.

    They are found once somebody asks for one: a score has no use for them.

    Parameters
    ----------
    rows : (judged,) intp
        Those of the view that were judged.
    probability : (workers,) float64
        Of all of them.
    prior : float
        How many of all rows failed: who is not above it is not at risk.
    explain : callable
        Places among the judged to a sentence for each.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import Reasons
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
