"""All that a trainer logs, and prints where that is asked for, on its way to the Weaver."""

from collections.abc import Callable, Mapping
from typing import Any

from torchloom_threadlet.trainer import log_capture, output_capture
from torchloom_threadlet.trainer.log_lines import LogLines


class TrainerLog:
    """Hears a trainer's log, as loud as the environment and the knob ``log_level`` say.

    Parameters
    ----------
    tell : callable
        Takes the fields of a line, and says whether they were taken; never waits.
    """

    def __init__(self, tell: Callable[[Mapping[str, Any]], bool]) -> None:
        lines = LogLines(tell)
        self._records = log_capture.LogCapture(lines, log_capture.wanted())
        self._output = output_capture.OutputCapture(lines, output_capture.wanted())

    def start(self, register_knob: Callable[..., None]) -> None:
        """Hear from now on; offer the level as a knob, unless nothing is to be heard at all."""
        self._records.start()
        self._output.start()
        if self._records.level != "off":
            register_knob(
                "log_level",
                lambda: self._records.level,
                self._records.set_level,
                kind="choice",
                choices=log_capture.LEVELS,
                doc="from which level on the trainer's own log goes to the Weaver",
            )

    def stop(self) -> None:
        """Hear nothing more."""
        self._output.stop()
        self._records.stop()
