"""The trainer's own log on its way to the Weaver: what is loud enough, a few lines a second.

What comes faster is dropped, and how much was is said with the next line: training never waits for
its log to be read.
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

LEVELS: Mapping[str, int] = {
    "off": 1 << 30,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
"""What ``TORCHLOOM_TRAINER_LOG`` may be."""

VARIABLE = "TORCHLOOM_TRAINER_LOG"
DEFAULT = "warning"

_PER_S = 5.0
_BURST = 100.0
_MOST_CHARACTERS = 8000

_logger = logging.getLogger(__name__)


def wanted(environment: Mapping[str, str] = os.environ) -> int:
    """Return from which level on lines are wanted, by the environment."""
    said = environment.get(VARIABLE, "") or DEFAULT
    if said.lower() not in LEVELS:
        _logger.warning("%s: need one of %s, was %r", VARIABLE, ", ".join(LEVELS), said)
        return LEVELS[DEFAULT]
    return LEVELS[said.lower()]


class LogCapture:
    """Hears every record of Python's logging in this process, beside the handlers that there are.

    It is no handler: ``logging.basicConfig`` of a user's script does nothing where there is one.

    Parameters
    ----------
    tell : callable
        Takes the fields of a line, and says whether they were taken; never waits.
    level : int
        From which level on.
    """

    def __init__(
        self,
        tell: Callable[[Mapping[str, Any]], bool],
        level: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._level = level
        self._now_s = now_s
        self._pid = os.getpid()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._allowance, self._at_s = _BURST, now_s()
        self._dropped = 0
        self._before: Callable[[logging.Logger, logging.LogRecord], None] | None = None

    def start(self) -> None:
        """Hear what is logged from now on."""
        if self._level >= LEVELS["off"]:
            return
        before = self._before = logging.Logger.callHandlers

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            before(logger, record)
            self.take(record)

        self._ours = call_handlers
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]

    def stop(self) -> None:
        """Hear nothing more, unless somebody has wrapped it since: then hear it for nothing."""
        self._level = LEVELS["off"]
        if self._before is not None and logging.Logger.callHandlers is self._ours:
            logging.Logger.callHandlers = self._before  # type: ignore[assignment,method-assign]

    def take(self, record: logging.LogRecord) -> None:
        """Pass a record on, if it is loud enough and there is room."""
        if record.levelno < self._level or getattr(self._own, "busy", False):
            return
        if os.getpid() != self._pid:  # a child that the trainer has forked has no link
            return
        self._own.busy = True  # what telling it logs is not told
        try:
            self._pass_on(record)
        except Exception:  # noqa: BLE001 - a user's object may raise as it is put into words
            self._dropped += 1
        finally:
            self._own.busy = False

    def _pass_on(self, record: logging.LogRecord) -> None:
        with self._lock:
            now_s = self._now_s()
            self._allowance = min(_BURST, self._allowance + _PER_S * (now_s - self._at_s))
            self._at_s = now_s
            if self._allowance < 1.0:
                self._dropped += 1
                return
            self._allowance -= 1.0
        said = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            said += "\n" + "".join(traceback.format_exception(*record.exc_info))
        fields: dict[str, Any] = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": said[:_MOST_CHARACTERS],
        }
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            fields["dropped"] = dropped
        if not self._tell(fields):
            with self._lock:
                self._dropped += dropped + 1
