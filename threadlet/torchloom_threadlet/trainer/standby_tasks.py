"""The tasks that a script lets its standby do while it waits, as the worker sees them."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Send = Callable[[int, int, Any], object]
"""Takes the number of points so far, the expected number, and a part of the result."""


class StandbyTaskRunner(Protocol):
    """Runs standby tasks of one kind, as the script offers it."""

    @property
    def tries(self) -> tuple[str, ...]:
        """The names of the knobs that a task may change."""

    def refusal(self, standby_task: Any, /) -> str | None:
        """Return why the standby task cannot be run, or None if it can."""

    def run(
        self,
        standby_task: Any,
        worker: str,
        seconds: float,
        send: Send,
        should_stop: Callable[[], bool],
        /,
    ) -> str:
        """Run the task as ``worker``, send its results part by part, and return how far it came.

        It ends as soon as ``should_stop`` returns True.
        """


StandbyTasks = Mapping[str, StandbyTaskRunner]
"""The runner of each kind of standby task that the script offers, by the task's verb."""


def standby_tasks_of(
    landscape: StandbyTaskRunner | None, preview: StandbyTaskRunner | None
) -> StandbyTasks:
    """Return the runners of the standby tasks that the script offers."""
    offered = {"survey": landscape, "rehearse": preview}
    return {verb: runner for verb, runner in offered.items() if runner is not None}
