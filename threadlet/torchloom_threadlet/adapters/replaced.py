"""Replace a method of one object, such as a framework's trainer, for as long as it is attached."""

from collections.abc import Callable
from typing import Any


def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of this object alone, and return a function that undoes it."""
    before = vars(owner).get(name)

    def undo() -> None:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, function)
    return undo
