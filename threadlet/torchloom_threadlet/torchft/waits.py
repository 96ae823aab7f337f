"""Records what torchft's Manager waits for, and wraps its methods."""

import logging
from collections.abc import Callable
from typing import Any

from torchloom_threadlet.compression.figures import Waits

_logger = logging.getLogger(__name__)


def stamp_waits(manager: Any, phases: Waits, of_reductions: Waits) -> None:
    """Record the time that ``manager`` waits for others.

    ``of_reductions`` records the waits for an allreduce, ``phases`` all others.

    On a GPU, ``wait`` of a collective and the launch of a kernel return at once, and the host
    waits for both in ``should_commit``: there the two waits cannot be separated.
    """
    for name, what in (
        ("start_quorum", "quorum"),
        ("wait_quorum", "quorum"),
        ("should_commit", "commit"),
    ):
        setattr(manager, name, _stamped(getattr(manager, name), what, phases))
    allreduce, stamped = manager.allreduce, dict[Any, Any]()

    def stamped_allreduce(*args: Any, **kwargs: Any) -> Any:
        work = allreduce(*args, **kwargs)
        kind = type(work)
        if kind not in stamped:
            stamped[kind] = _stamped_work(kind, of_reductions)
        work.__class__ = stamped[kind]
        return work

    manager.allreduce = stamped_allreduce


def hook(
    manager: Any,
    name: str,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Have functions called before and after each call of a method of ``manager``."""
    method = getattr(manager, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        _call(before, name)
        try:
            return method(*args, **kwargs)
        finally:
            _call(after, name)

    setattr(manager, name, hooked)


def _call(function: Callable[[], None] | None, name: str) -> None:
    try:
        if function is not None:
            function()
    except Exception:
        _logger.exception("torchloom failed at %s; training continues", name)


def _stamped(method: Callable[..., Any], what: str, waits: Waits) -> Callable[..., Any]:
    def stamped(*args: Any, **kwargs: Any) -> Any:
        waits.begin(what)
        try:
            return method(*args, **kwargs)
        finally:
            waits.end(what)

    return stamped


def _stamped_work(kind: Any, waits: Waits) -> Any:
    """Return a class of work whose ``wait`` is recorded.

    Not a function in the work's own ``__dict__``: it would keep the work and its tensors until the
    next garbage collection, or not long enough in ``manager.allreduce(x).wait()``.
    """
    return type(kind.__name__, (kind,), {"wait": _stamped(kind.wait, "allreduce", waits)})
