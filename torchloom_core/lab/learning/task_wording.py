"""The words for what a task predicts: future failures, or current incidents.

Cards, scores and verdicts use them.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaskWording:
    """The words of one task.

    Attributes
    ----------
    one, many : str
        A failure, or an incident.
    before : str
        Where the positive moments of ``many`` lie.
    positive : str
        Describes positive moments.
    found : str
        Describes ``many`` that a predictor can find.
    """

    one: str
    many: str
    before: str
    positive: str
    found: str

    def count(self, number: int) -> str:
        """Return the count with its noun, as ``1 failure`` or ``2 failures``."""
        return f"{number} {self.one if number == 1 else self.many}"


WORDING: dict[Literal["forecast", "detect"], TaskWording] = {
    "forecast": TaskWording(
        "failure", "failures", "before", "followed by a failure", "predictable"
    ),
    "detect": TaskWording("incident", "incidents", "in them", "in an incident", "detectable"),
}
