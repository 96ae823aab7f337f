"""Show on stderr the progress of a long command and its estimated remaining time."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from torchloom_core.cli.output import span

_QUIET_S = 30.0
_SHARE_A_LINE = 0.01

ReportProgress = Callable[[str, float, float], None]
"""Takes the name of a task, the amount done and the total amount."""


@contextmanager
def progress() -> Iterator[ReportProgress]:
    """Yield a function that shows a bar on a terminal, and prints lines elsewhere."""
    # Not rich's own check: with FORCE_COLOR it takes a log file for a terminal.
    if not sys.stderr.isatty():
        with _beating(Lines(time.monotonic, lambda line: sys.stderr.write(f"{line}\n"))) as report:
            yield forwards(report)
        return
    with _Bars(Console(stderr=True), time.monotonic) as bars:
        yield forwards(bars.report)


def forwards(report: ReportProgress) -> ReportProgress:
    """Return a function that passes on progress, but never less than reported before.

    A task that starts over, such as a predictor that learns in two passes, stays where it was
    until it is further.
    """
    furthest: dict[str, float] = {}

    def pass_on(what: str, done: float, total: float) -> None:
        if done / total >= furthest.get(what, 0.0):
            furthest[what] = done / total
            report(what, done, total)

    return pass_on


@contextmanager
def _beating(lines: "Lines") -> Iterator[ReportProgress]:
    """Yield the lines' report function, and regularly check for a long silence."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_QUIET_S):
            lines.check_silence()

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield lines.report
    finally:
        over.set()
        beats.join()


class Lines:
    """Print a line per percent of progress, at most one in 30 s.

    If no progress is reported, as while a predictor learns, print that the command still runs:
    after one minute, then after intervals that double.
    """

    def __init__(self, now_s: Callable[[], float], write: Callable[[str], object]) -> None:
        self._now_s, self._write = now_s, write
        self._bars = _Bars(None, now_s)
        self._what = "torchloom"
        self._written_s = self._reported_s = now_s()
        self._share = 0.0
        self._patience_s = 2 * _QUIET_S
        self._lock = threading.Lock()

    def report(self, what: str, done: float, total: float) -> None:
        """Take the name of a task, the amount done and the total amount."""
        with self._lock:
            self._bars.report(what, done, total)
            now_s, share = self._now_s(), done / total
            self._what, self._reported_s, self._patience_s = what, now_s, 2 * _QUIET_S
            if now_s - self._written_s < _QUIET_S or 0 <= share - self._share < _SHARE_A_LINE:
                return
            self._written_s, self._share = now_s, share
            how_far = f"{done:g} of {total:g}" if total > 1 else f"{share:.0%}"
            left_s = self._bars.left_s(what)
            self._write(f"{what} {how_far}" + (f", about {span(left_s)} left" if left_s else ""))

    def check_silence(self) -> None:
        """Print that the command still runs, if that is due."""
        with self._lock:
            silent_s = self._now_s() - self._reported_s
            if silent_s < self._patience_s:
                return
            self._written_s = self._now_s()
            self._patience_s *= 2
            self._write(f"{self._what}: still running, no progress reported for {span(silent_s)}")


class _Bars(Progress):
    """A bar per task; a finished task's bar is removed.

    Progress in one jump, such as runs that were finished before, does not count in the estimate.
    """

    def __init__(self, console: Console | None, now_s: Callable[[], float]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            get_time=now_s,
            speed_estimate_period=math.inf,
        )
        self._bar_of: dict[str, TaskID] = {}

    def report(self, what: str, done: float, total: float) -> None:
        if what not in self._bar_of:
            self._bar_of[what] = self.add_task(what, total=total)
        bar = self._bar_of[what]
        if done - self._tasks[bar].completed > 1:
            self.reset(bar)  # rich estimates no speed from the first update after a reset
        self.update(bar, completed=done, total=total, visible=done < total)

    def left_s(self, what: str) -> float | None:
        """Return the estimated remaining time, None if unknown."""
        return self._tasks[self._bar_of[what]].time_remaining
