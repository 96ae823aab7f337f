"""What a script lets its stand-by do alone while it waits, as the worker sees it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torchloom_core.wire.messages import Errand, Rehearse, Survey

Tell = Callable[[int, int, Any], object]
"""Takes the points so far, about how many there will be, and a piece."""


class ErrandRunner(Protocol):
    """What does an errand of one kind, as the script offers it."""

    @property
    def tries(self) -> tuple[str, ...]:
        """The names of the knobs that it can be asked to change."""

    def refusal(self, errand: Any, /) -> str | None:
        """Return why the errand cannot be done, or None if it can."""

    def run(
        self,
        errand: Any,
        worker: str,
        seconds: float,
        tell: Tell,
        is_asked: Callable[[], bool],
        /,
    ) -> str:
        """Do it as ``worker``, tell what comes of it piece by piece, and return how far it came.

        It ends as soon as ``is_asked`` says that the stand-by was asked for something else.
        """


Errands = Mapping[type[Errand], ErrandRunner]
"""What does each kind of errand that the script offers."""


def errands_of(landscape: ErrandRunner | None, preview: ErrandRunner | None) -> Errands:
    """Return the errands by their deeds, without those that the script does not offer."""
    offered: dict[type[Errand], ErrandRunner | None] = {Survey: landscape, Rehearse: preview}
    return {kind: runner for kind, runner in offered.items() if runner is not None}


def verb_of(kind: type[Errand]) -> str:
    """Return the verb that a worker obeys which offers this kind of errand."""
    return str(kind.__struct_config__.tag)
