"""The weights that a script loaded for a standby task, and the step they belong to."""

from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

from torch import Tensor

from torchloom_threadlet.cleaning import whole
from torchloom_threadlet.standby_tasks.fingerprints import print_of


class Loaded(NamedTuple):
    """The print of the weights, and the step of the run that they are of; -1: nobody says."""

    at: str
    of_step: int


def loaded(told: object, weights: Iterable[Tensor]) -> Loaded:
    """Return where it begins; ``told`` is what the script's ``load`` returned, a step or not."""
    is_step = isinstance(told, Integral) and not isinstance(told, bool)
    return Loaded(print_of(weights), whole(told) if is_step else -1)
