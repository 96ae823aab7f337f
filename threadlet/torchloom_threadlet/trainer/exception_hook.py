"""Takes note of the exception that ends a process, before Python prints it."""

import sys
from collections.abc import Callable
from typing import Any


class ExceptionHook:
    """Calls ``note(error)`` for an uncaught exception, then the hook that was there before.

    An interrupt is none.
    """

    def __init__(self, note: Callable[[BaseException], object]) -> None:
        self._note = note
        self._previous = sys.excepthook
        sys.excepthook = self._call

    def remove(self) -> None:
        """Put the earlier hook back, unless another one has followed."""
        if sys.excepthook == self._call:
            sys.excepthook = self._previous

    def _call(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            self._note(error)
        self._previous(kind, error, trace)
