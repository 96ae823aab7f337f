"""Sends the trainer's log, and its output where requested, to the Weaver: a few lines a second.

Nothing waits. Lines above that rate are dropped; the next line reports how many.
"""

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PER_S = 5.0
_BURST = 100.0
MOST_CHARACTERS = 8000
"""The longest line; the rest is cut off."""
STREAMS = ("stdout", "stderr")
_OUTPUT = "TORCHLOOM_TRAINER_OUTPUT"

_logger = logging.getLogger(__name__)
LEVELS: Mapping[str, int] = {
    "off": 1 << 30,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
"""The values of ``TORCHLOOM_TRAINER_LOG`` and of the knob ``log_level``."""

_LEVEL = "TORCHLOOM_TRAINER_LOG"
_DEFAULT = "warning"


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


def wanted_streams(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return which streams the environment asks to capture."""
    value = environment.get(_OUTPUT, "")
    named = {part.strip().lower() for part in value.split(",")} - {""}
    if not named <= set(STREAMS):
        _logger.warning("%s: need some of stdout,stderr or nothing, was %r", _OUTPUT, value)
        return ()
    return tuple(name for name in STREAMS if name in named)


class OutputCapture:
    """Captures what is written to ``sys.stdout`` or ``sys.stderr``.

    Output of logging's handlers is captured as records only. Output that bypasses Python, such as
    a library's own printf, is not captured.
    """

    def __init__(self, lines: LogLines, names: tuple[str, ...]) -> None:
        self._lines, self._names = lines, names
        self._captured: dict[str, _CapturedStream] = {}

    def start(self) -> None:
        """Begin to capture."""
        for name in self._names:
            stream = getattr(sys, name)
            if stream is not None:  # as under pythonw
                self._captured[name] = _CapturedStream(stream, self._sender(name))
                setattr(sys, name, self._captured[name])

    def stop(self) -> None:
        """Stop capturing; where another wrapper was added since, stay in place but do nothing."""
        for name, captured in self._captured.items():
            captured.send = None
            if getattr(sys, name) is captured:
                setattr(sys, name, captured.stream)

    def _sender(self, name: str) -> Callable[[str], None]:
        def send(line: str) -> None:
            if not self._lines.in_handlers:
                self._lines.pass_on("info", name, lambda: line)

        return send


class _CapturedStream:
    """A stream whose complete lines are sent; of a line overwritten in place, its final text."""

    def __init__(self, stream: Any, send: Callable[[str], None] | None) -> None:
        self.stream, self.send = stream, send
        self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, output: str) -> Any:
        written = self.stream.write(output)
        if self.send is not None:
            self._take(output, self.send)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def _take(self, output: str, send: Callable[[str], None]) -> None:
        *whole, begun = (self._begun + output).split("\n")
        self._begun = begun.rpartition("\r")[2][:MOST_CHARACTERS]
        for line in whole:
            final = line.removesuffix("\r").rpartition("\r")[2]
            if final.strip():
                send(final)


def wanted_level(environment: Mapping[str, str] = os.environ) -> str:
    """Return the environment's level for the capture."""
    level = environment.get(_LEVEL, "") or _DEFAULT
    if level.lower() not in LEVELS:
        _logger.warning("%s: need one of %s, was %r", _LEVEL, ", ".join(LEVELS), level)
        return _DEFAULT
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
        self._records = LogCapture(lines, wanted_level())
        self._output = OutputCapture(lines, wanted_streams())

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
