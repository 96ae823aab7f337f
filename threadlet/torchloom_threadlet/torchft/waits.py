"""Stamp what torchft's Manager waits for."""

import weakref
from collections.abc import Callable
from typing import Any

from torchloom_threadlet.trainer.phases import Phases


def stamp_waits(manager: Any, phases: Phases) -> None:
    """Stamp the time in ``manager`` that is spent on waiting for others.

    On a GPU, ``wait`` of a collective and the launch of a kernel return at once, and the host
    waits for both together in ``should_commit``: there the stamps do not tell the two apart.
    """
    for name, what in (
        ("start_quorum", "quorum"),
        ("wait_quorum", "quorum"),
        ("should_commit", "commit"),
    ):
        setattr(manager, name, _stamped(getattr(manager, name), phases, what))
    allreduce = manager.allreduce

    def stamped_allreduce(*args: Any, **kwargs: Any) -> Any:
        work = allreduce(*args, **kwargs)
        work.wait = _stamped_wait(work, phases)
        return work

    manager.allreduce = stamped_allreduce


def _stamped(method: Callable[..., Any], phases: Phases, what: str) -> Callable[..., Any]:
    def stamped(*args: Any, **kwargs: Any) -> Any:
        phases.begin(what)
        try:
            return method(*args, **kwargs)
        finally:
            phases.end(what)

    return stamped


def _stamped_wait(work: Any, phases: Phases) -> Callable[..., Any]:
    # Bound to the work, the wait would keep it and its tensors until the next collection.
    wait, present = type(work).wait, weakref.ref(work)
    return _stamped(lambda *args, **kwargs: wait(present(), *args, **kwargs), phases, "allreduce")
