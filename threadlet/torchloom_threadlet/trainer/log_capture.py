"""The trainer's own log: every record of Python's logging that is loud enough."""

import logging
import os
import traceback
from collections.abc import Callable, Mapping

from torchloom_threadlet.trainer.log_lines import LogLines

LEVELS: Mapping[str, int] = {
    "off": 1 << 30,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
"""What ``TORCHLOOM_TRAINER_LOG`` and the knob ``log_level`` may be."""

VARIABLE = "TORCHLOOM_TRAINER_LOG"
DEFAULT = "warning"

_logger = logging.getLogger(__name__)


def wanted(environment: Mapping[str, str] = os.environ) -> str:
    """Return from which level on lines are wanted, by the environment."""
    said = environment.get(VARIABLE, "") or DEFAULT
    if said.lower() not in LEVELS:
        _logger.warning("%s: need one of %s, was %r", VARIABLE, ", ".join(LEVELS), said)
        return DEFAULT
    return said.lower()


class _Lowered(int):
    """A level of the root logger that is ours; one that a script sets is a plain number."""


class LogCapture:
    """Hears every record of Python's logging in this process, beside the handlers that there are.

    It is no handler: ``logging.basicConfig`` of a user's script does nothing where there is one.
    What is to be heard and is below the root logger's own level takes a lower one, by which the
    handlers get nothing that they would not have got.

    Parameters
    ----------
    level : str
        From which of the ``LEVELS`` on; one that begins as ``off`` hears nothing ever.

    Attributes
    ----------
    level : str
        The same, now.
    """

    def __init__(self, lines: LogLines, level: str) -> None:
        self._lines = lines
        self.level = level
        self._before: Callable[[logging.Logger, logging.LogRecord], None] | None = None
        self._own_level = logging.NOTSET

    def start(self) -> None:
        """Hear what is logged from now on."""
        if self.level == "off":
            return
        before = self._before = logging.Logger.callHandlers

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if not self._is_ours_alone(logger, record):
                with self._lines.handlers():
                    before(logger, record)
            self.take(record)

        self._ours = call_handlers
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]
        self._level_root()

    def stop(self) -> None:
        """Hear nothing more, unless somebody has wrapped it since: then hear it for nothing."""
        self.level = "off"
        if self._before is None:
            return
        self._level_root()
        if logging.Logger.callHandlers is self._ours:
            logging.Logger.callHandlers = self._before  # type: ignore[assignment,method-assign]

    def set_level(self, level: str) -> None:
        """Hear what is as loud as one of the ``LEVELS`` from now on."""
        self.level = level
        self._level_root()

    def _level_root(self) -> None:
        """Have the root logger let through what is to be heard, or what it did by itself."""
        root = logging.getLogger()
        is_ours = isinstance(root.level, _Lowered)
        if not is_ours:
            self._own_level = root.level
        if LEVELS[self.level] < self._own_level:
            root.setLevel(_Lowered(LEVELS[self.level]))
        elif is_ours:
            root.setLevel(self._own_level)

    def _is_ours_alone(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Say whether a record is there only because the root logger's level was lowered."""
        is_ours = isinstance(logger.getEffectiveLevel(), _Lowered)
        return is_ours and record.levelno < self._own_level

    def take(self, record: logging.LogRecord) -> None:
        """Pass a record on, if it is loud enough and there is room."""
        if record.levelno >= LEVELS[self.level]:
            self._lines.pass_on(record.levelname.lower(), record.name, lambda: _text(record))


def _text(record: logging.LogRecord) -> str:
    said = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        said += "\n" + "".join(traceback.format_exception(*record.exc_info))
    return said
