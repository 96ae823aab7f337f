"""Captures the trainer's own log, every record of logging above a level, and sends it."""

import logging
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from torchloom_threadlet.trainer import output_capture
from torchloom_threadlet.trainer.log_lines import LogLines

LEVELS: Mapping[str, int] = {
    "off": 1 << 30,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
"""The values of ``TORCHLOOM_TRAINER_LOG`` and of the knob ``log_level``."""

VARIABLE = "TORCHLOOM_TRAINER_LOG"
DEFAULT = "warning"

_logger = logging.getLogger(__name__)


def wanted(environment: Mapping[str, str] = os.environ) -> str:
    """Return the environment's level for the capture."""
    level = environment.get(VARIABLE, "") or DEFAULT
    if level.lower() not in LEVELS:
        _logger.warning("%s: need one of %s, was %r", VARIABLE, ", ".join(LEVELS), level)
        return DEFAULT
    return level.lower()


class _Lowered(int):
    """A root logger's level set by the capture; a script sets a plain number."""


class LogCapture:
    """Captures every record of Python's logging in this process, beside the present handlers.

    It is no handler: with one on the root logger ``logging.basicConfig`` of a script does nothing.
    For levels below the root logger's own, that level is lowered; the handlers do not get the
    additional records.
    """

    def __init__(self, lines: LogLines, level: str) -> None:
        self._lines = lines
        self.level = level
        self._before: Callable[[logging.Logger, logging.LogRecord], None] | None = None
        self._own_level = logging.NOTSET

    def start(self) -> None:
        """Begin to capture."""
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
        """Stop capturing; where another wrapper was added since, stay in place but do nothing."""
        self.level = "off"
        if self._before is None:
            return
        self._level_root()
        if logging.Logger.callHandlers is self._ours:
            logging.Logger.callHandlers = self._before  # type: ignore[assignment,method-assign]

    def set_level(self, level: str) -> None:
        """Capture from one of the ``LEVELS`` on."""
        self.level = level
        self._level_root()

    def _level_root(self) -> None:
        """Set the root logger's level to that of the capture, or back to its own."""
        root = logging.getLogger()
        is_ours = isinstance(root.level, _Lowered)
        if not is_ours:
            self._own_level = root.level
        if LEVELS[self.level] < self._own_level:
            root.setLevel(_Lowered(LEVELS[self.level]))
        elif is_ours:
            root.setLevel(self._own_level)

    def _is_ours_alone(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Return whether a record exists only because the root logger's level was lowered."""
        is_ours = isinstance(logger.getEffectiveLevel(), _Lowered)
        return is_ours and record.levelno < self._own_level

    def take(self, record: logging.LogRecord) -> None:
        """Pass a record on, if its level is high enough."""
        if record.levelno >= LEVELS[self.level]:
            self._lines.pass_on(record.levelname.lower(), record.name, lambda: _text(record))


def _text(record: logging.LogRecord) -> str:
    line = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        line += "\n" + "".join(traceback.format_exception(*record.exc_info))
    return line


class TrainerLog:
    """Captures a trainer's log, from the level of the environment or the knob ``log_level``."""

    def __init__(self, send: Callable[[Mapping[str, Any]], bool]) -> None:
        lines = LogLines(send)
        self._records = LogCapture(lines, wanted())
        self._output = output_capture.OutputCapture(lines, output_capture.wanted())

    def start(self, register_knob: Callable[..., None]) -> None:
        """Begin to capture; register the level as a knob, unless logs are off."""
        self._records.start()
        self._output.start()
        if self._records.level != "off":
            register_knob(
                "log_level",
                lambda: self._records.level,
                self._records.set_level,
                kind="choice",
                choices=LEVELS,
                doc="the lowest level of the trainer's log lines that go to the Weaver",
            )

    def stop(self) -> None:
        """Stop capturing."""
        self._output.stop()
        self._records.stop()
