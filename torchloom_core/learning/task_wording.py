"""What a task has told, in words: failures that come, or incidents that go on.

Cards, scores and the sentence on skill count and name it by this.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Told:
    """What is told, in words.

    Attributes
    ----------
    one, many : str
        A failure, or an incident.
    before : str
        Where the positive moments of ``many`` lie.
    positive : str
        What positive moments were.
    """

    one: str
    many: str
    before: str
    positive: str

    def count(self, number: int) -> str:
        """Return how many, as ``1 failure`` or ``2 failures``."""
        return f"{number} {self.one if number == 1 else self.many}"


TOLD: dict[Literal["forecast", "detect"], Told] = {
    "forecast": Told("failure", "failures", "before", "followed by a failure"),
    "detect": Told("incident", "incidents", "in them", "in an incident"),
}
