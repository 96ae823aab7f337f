"""The closure that some scripts pass to an optimizer's step: it computes the gradients."""

from collections.abc import Callable
from typing import Any


def after_gradients(args: Any, kwargs: Any, act: Callable[[], object]) -> Any:
    """Call ``act`` now, or where a closure is passed, after each of its calls.

    For a hook before an optimizer's step, which returns what this returns: the step's arguments
    with another closure, or None.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        act()
        return None

    def evaluated() -> Any:
        loss = closure()
        act()
        return loss

    return args[:1], {**kwargs, "closure": evaluated}
