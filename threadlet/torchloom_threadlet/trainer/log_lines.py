"""A trainer's log lines on their way to the Weaver: a few a second, without waiting.

Lines above that rate are dropped; the next line reports how many.
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
"""The longest line; the rest is cut off."""


class LogLines:
    """Passes lines on, from any thread.

    ``send``: takes the fields of a line, and returns whether they were sent; never waits.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._now_s = now_s
        self._pid = os.getpid()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._allowance, self._at_s = _BURST, now_s()
        self._dropped = 0

    @property
    def in_handlers(self) -> bool:
        """Whether this thread runs logging's handlers."""
        return getattr(self._own, "handlers", 0) > 0

    @contextlib.contextmanager
    def handlers(self) -> Iterator[None]:
        """Mark this thread as running logging's handlers."""
        self._own.handlers = getattr(self._own, "handlers", 0) + 1
        try:
            yield
        finally:
            self._own.handlers -= 1

    def pass_on(self, level: str, logger: str, make_text: Callable[[], str]) -> None:
        """Send a line if the rate allows it; only then is ``make_text`` called for its text."""
        # What sending a line logs is not captured; a forked child of the trainer has no link.
        if getattr(self._own, "busy", False) or os.getpid() != self._pid:
            return
        self._own.busy = True
        try:
            self._send_if_allowed(level, logger, make_text)
        except Exception:  # noqa: BLE001 - formatting a user's object may raise
            self._dropped += 1
        finally:
            self._own.busy = False

    def _send_if_allowed(self, level: str, logger: str, make_text: Callable[[], str]) -> None:
        with self._lock:
            now_s = self._now_s()
            self._allowance = min(_BURST, self._allowance + _PER_S * (now_s - self._at_s))
            self._at_s = now_s
            if self._allowance < 1.0:
                self._dropped += 1
                return
            self._allowance -= 1.0
        text = make_text()[:MOST_CHARACTERS]
        fields: dict[str, Any] = {"level": level, "logger": logger, "text": text}
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            fields["dropped"] = dropped
        if not self._send(fields):
            with self._lock:
                self._dropped += dropped + 1
