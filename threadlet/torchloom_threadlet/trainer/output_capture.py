"""Captures what the trainer prints, where requested, and still prints it."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchloom_threadlet.trainer.log_lines import MOST_CHARACTERS, LogLines

STREAMS = ("stdout", "stderr")
VARIABLE = "TORCHLOOM_TRAINER_OUTPUT"

_logger = logging.getLogger(__name__)


def wanted(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return which streams the environment asks to capture."""
    value = environment.get(VARIABLE, "")
    named = {part.strip().lower() for part in value.split(",")} - {""}
    if not named <= set(STREAMS):
        _logger.warning("%s: need some of stdout,stderr or nothing, was %r", VARIABLE, value)
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
