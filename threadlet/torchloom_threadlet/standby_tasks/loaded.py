"""The weights that a script loaded for a standby task, and the step they belong to."""

from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

from torch import Tensor

from torchloom_threadlet.cleaning import whole
from torchloom_threadlet.standby_tasks.fingerprints import fingerprint


class Loaded(NamedTuple):
    """The fingerprint of the weights, and their step of the run; -1: unknown."""

    at: str
    of_step: int


def loaded(step: object, weights: Iterable[Tensor]) -> Loaded:
    """Return the loaded weights; ``step`` is what the script's ``load`` returned, if a step."""
    is_step = isinstance(step, Integral) and not isinstance(step, bool)
    return Loaded(fingerprint(weights), whole(step) if is_step else -1)
