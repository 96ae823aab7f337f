"""The closure that some scripts pass to an optimizer's step: it computes the gradients."""

from collections.abc import Callable
from typing import Any


def after_gradients(args: Any, kwargs: Any, act: Callable[[], object]) -> Any:
    """Call ``act`` now, or where a closure is passed, after each of its calls.

    For a hook before an optimizer's step, which returns what this returns: the step's arguments
    with another closure, or None.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):  # an optimizer may have other arguments
        act()
        return None

    def evaluated() -> Any:
        loss = closure()
        act()
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": evaluated}
    return (args[0], evaluated, *args[2:]), kwargs
