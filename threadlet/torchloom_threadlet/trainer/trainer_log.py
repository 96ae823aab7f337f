"""Sends the trainer's log, and its output where requested, to the Weaver."""

from collections.abc import Callable, Mapping
from typing import Any

from torchloom_threadlet.trainer import log_capture, output_capture
from torchloom_threadlet.trainer.log_lines import LogLines


class TrainerLog:
    """Captures a trainer's log, from the level of the environment or the knob ``log_level``."""

    def __init__(self, send: Callable[[Mapping[str, Any]], bool]) -> None:
        lines = LogLines(send)
        self._records = log_capture.LogCapture(lines, log_capture.wanted())
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
                choices=log_capture.LEVELS,
                doc="the lowest level of the trainer's log lines that go to the Weaver",
            )

    def stop(self) -> None:
        """Stop capturing."""
        self._output.stop()
        self._records.stop()
