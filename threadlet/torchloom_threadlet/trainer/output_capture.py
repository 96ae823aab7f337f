"""What the trainer prints, where that is asked for: its lines, beside where they go."""

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
    """Return which streams are to be heard, by the environment."""
    said = environment.get(VARIABLE, "")
    named = {part.strip().lower() for part in said.split(",")} - {""}
    if not named <= set(STREAMS):
        _logger.warning("%s: need some of stdout,stderr or nothing, was %r", VARIABLE, said)
        return ()
    return tuple(name for name in STREAMS if name in named)


class OutputCapture:
    """Hears what is written to ``sys.stdout`` or ``sys.stderr``.

    What logging's handlers write there is heard as a record, or not at all. What goes around
    Python, as a library's own printf does, is not heard.
    """

    def __init__(self, lines: LogLines, names: tuple[str, ...]) -> None:
        self._lines, self._names = lines, names
        self._heard: dict[str, _Heard] = {}

    def start(self) -> None:
        """Hear what is written from now on."""
        for name in self._names:
            stream = getattr(sys, name)
            if stream is not None:  # as under pythonw
                self._heard[name] = _Heard(stream, self._teller(name))
                setattr(sys, name, self._heard[name])

    def stop(self) -> None:
        """Hear nothing more, unless somebody has wrapped it since: then hear it for nothing."""
        for name, heard in self._heard.items():
            heard.tell = None
            if getattr(sys, name) is heard:
                setattr(sys, name, heard.stream)

    def _teller(self, name: str) -> Callable[[str], None]:
        def tell(line: str) -> None:
            if not self._lines.in_handlers:
                self._lines.pass_on("info", name, lambda: line)

        return tell


class _Heard:
    """A stream whose whole lines are told; of one that is overwritten in place, what stays."""

    def __init__(self, stream: Any, tell: Callable[[str], None] | None) -> None:
        self.stream, self.tell = stream, tell
        self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, said: str) -> Any:
        written = self.stream.write(said)
        if self.tell is not None:
            self._hear(said, self.tell)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def _hear(self, said: str, tell: Callable[[str], None]) -> None:
        *whole, begun = (self._begun + said).split("\n")
        self._begun = begun.rpartition("\r")[2][:MOST_CHARACTERS]
        for line in whole:
            stays = line.removesuffix("\r").rpartition("\r")[2]
            if stays.strip():
                tell(stays)
