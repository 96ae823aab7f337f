"""What one benchmark hands to the report: a ratio, its limit, and the numbers behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """One figure of the speed requirements.

    Attributes
    ----------
    name, what : str
        Short name, and what is compared with what.
    limit, bound : float or None, {"at least", "at most"}
        The ratio has to be ``bound`` ``limit``; None: there is no limit.
    ratios : sequence of float
        One per repeat, each measured side by side.
    numbers : mapping of str to float
        The absolute measurements, medians over the repeats, unit in the name.
    """

    name: str
    what: str
    limit: float | None
    bound: Literal["at least", "at most"]
    ratios: Sequence[float]
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the median ratio keeps the limit; None without one."""
        if self.limit is None:
            return None
        if self.bound == "at least":
            return self.ratio >= self.limit
        return self.ratio <= self.limit


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of ``values`` lie, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each column over the rows."""
    return {name: median(row[name] for row in rows) for name in rows[0]}
