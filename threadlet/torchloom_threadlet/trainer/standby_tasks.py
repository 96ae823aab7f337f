"""What a script lets its standby do alone while it waits, as the worker sees it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torchloom_core.wire.messages import Rehearse, StandbyTask, Survey

Tell = Callable[[int, int, Any], object]
"""Takes the points so far, about how many there will be, and a piece."""


class StandbyTaskRunner(Protocol):
    """What does a standby task of one kind, as the script offers it."""

    @property
    def tries(self) -> tuple[str, ...]:
        """The names of the knobs that it can be asked to change."""

    def refusal(self, standby_task: Any, /) -> str | None:
        """Return why the standby task cannot be done, or None if it can."""

    def run(
        self,
        standby_task: Any,
        worker: str,
        seconds: float,
        tell: Tell,
        is_asked: Callable[[], bool],
        /,
    ) -> str:
        """Do it as ``worker``, tell what comes of it piece by piece, and return how far it came.

        It ends as soon as ``is_asked`` says that the standby was asked for something else.
        """


StandbyTasks = Mapping[type[StandbyTask], StandbyTaskRunner]
"""What does each kind of standby task that the script offers."""


def standby_tasks_of(
    landscape: StandbyTaskRunner | None, preview: StandbyTaskRunner | None
) -> StandbyTasks:
    """Return the standby tasks that the script offers, by their operations."""
    offered: dict[type[StandbyTask], StandbyTaskRunner | None] = {
        Survey: landscape,
        Rehearse: preview,
    }
    return {kind: runner for kind, runner in offered.items() if runner is not None}


def verb_of(kind: type[StandbyTask]) -> str:
    """Return the verb that a worker obeys which offers this kind of standby_task."""
    return str(kind.__struct_config__.tag)
