"""A trainer's lines on their way to the Weaver: a few a second, never waited for.

What comes faster is dropped, and how much was is said with the next line.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PER_S = 5.0
_BURST = 100.0
MOST_CHARACTERS = 8000
"""Of a line; the rest is cut off."""


class LogLines:
    """Passes lines on, from any thread.

    Parameters
    ----------
    tell : callable
        Takes the fields of a line, and says whether they were taken; never waits.
    """

    def __init__(
        self,
        tell: Callable[[Mapping[str, Any]], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._now_s = now_s
        self._pid = os.getpid()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._allowance, self._at_s = _BURST, now_s()
        self._dropped = 0

    @property
    def in_handlers(self) -> bool:
        """Whether this thread is in the midst of logging's handlers."""
        return getattr(self._own, "handlers", 0) > 0

    @contextlib.contextmanager
    def handlers(self) -> Iterator[None]:
        """Mark this thread as in the midst of logging's handlers."""
        self._own.handlers = getattr(self._own, "handlers", 0) + 1
        try:
            yield
        finally:
            self._own.handlers -= 1

    def pass_on(self, level: str, logger: str, say: Callable[[], str]) -> None:
        """Tell a line, if there is room; ``say`` returns its text, and is called only then."""
        # What telling it logs is not told; a child that the trainer has forked has no link.
        if getattr(self._own, "busy", False) or os.getpid() != self._pid:
            return
        self._own.busy = True
        try:
            self._tell_if_allowed(level, logger, say)
        except Exception:  # noqa: BLE001 - a user's object may raise as it is put into words
            self._dropped += 1
        finally:
            self._own.busy = False

    def _tell_if_allowed(self, level: str, logger: str, say: Callable[[], str]) -> None:
        with self._lock:
            now_s = self._now_s()
            self._allowance = min(_BURST, self._allowance + _PER_S * (now_s - self._at_s))
            self._at_s = now_s
            if self._allowance < 1.0:
                self._dropped += 1
                return
            self._allowance -= 1.0
        text = say()[:MOST_CHARACTERS]
        fields: dict[str, Any] = {"level": level, "logger": logger, "text": text}
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            fields["dropped"] = dropped
        if not self._tell(fields):
            with self._lock:
                self._dropped += dropped + 1
