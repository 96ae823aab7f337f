"""Say on stderr how far a long command is, and about how much longer it takes."""

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

Told = Callable[[str, float, float], None]
"""Told what is being done, how much of it is over, and how much there is."""


@contextmanager
def progress() -> Iterator[Told]:
    """Yield what shows a bar where stderr is a terminal, and elsewhere now and then a line."""
    # Not what rich says: FORCE_COLOR makes a terminal of a log to it.
    if not sys.stderr.isatty():
        with _beating(Lines(time.monotonic, lambda line: sys.stderr.write(f"{line}\n"))) as told:
            yield forwards(told)
        return
    with _Bars(Console(stderr=True), time.monotonic) as bars:
        yield forwards(bars.told)


def forwards(told: Told) -> Told:
    """Return what passes on how far each thing is, but nothing that is behind what was told of it.

    What passes over the same twice, such as a predictor that learns in two passes, stays where it
    was until it is farther.
    """
    furthest: dict[str, float] = {}

    def tell(what: str, done: float, total: float) -> None:
        if done / total >= furthest.get(what, 0.0):
            furthest[what] = done / total
            told(what, done, total)

    return tell


@contextmanager
def _beating(lines: "Lines") -> Iterator[Told]:
    """Yield what the lines are told, and ask them to speak up where that is nothing for long."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_QUIET_S):
            lines.still()

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield lines.told
    finally:
        over.set()
        beats.join()


class Lines:
    """Says a line for each further hundredth, but none within 30 s of the last.

    Where nothing is told, as a predictor that learns tells nothing, it says that it goes on: after
    a minute, and then each time that took twice as long.
    """

    def __init__(self, now_s: Callable[[], float], say: Callable[[str], object]) -> None:
        self._now_s, self._say = now_s, say
        self._bars = _Bars(None, now_s)
        self._what = "torchloom"
        self._said_s = self._told_s = now_s()
        self._share = 0.0
        self._patience_s = 2 * _QUIET_S
        self._lock = threading.Lock()

    def told(self, what: str, done: float, total: float) -> None:
        """Take what is being done, how much of it is over, and how much there is."""
        with self._lock:
            self._bars.told(what, done, total)
            now_s, share = self._now_s(), done / total
            self._what, self._told_s, self._patience_s = what, now_s, 2 * _QUIET_S
            if now_s - self._said_s < _QUIET_S or 0 <= share - self._share < _SHARE_A_LINE:
                return
            self._said_s, self._share = now_s, share
            how_far = f"{done:g} of {total:g}" if total > 1 else f"{share:.0%}"
            left_s = self._bars.left_s(what)
            self._say(f"{what} {how_far}" + (f", about {span(left_s)} left" if left_s else ""))

    def still(self) -> None:
        """Say that it goes on, if that is due."""
        with self._lock:
            silent_s = self._now_s() - self._told_s
            if silent_s < self._patience_s:
                return
            self._said_s = self._now_s()
            self._patience_s *= 2
            self._say(f"{self._what}: still at work, {span(silent_s)} since the last news")


class _Bars(Progress):
    """A bar for all that is being done; what is over is gone.

    What is over all at once, such as runs that are found finished, says nothing about how long
    the rest takes.
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

    def told(self, what: str, done: float, total: float) -> None:
        if what not in self._bar_of:
            self._bar_of[what] = self.add_task(what, total=total)
        bar = self._bar_of[what]
        if done - self._tasks[bar].completed > 1:
            self.reset(bar)  # rich takes no speed from the first change that it sees
        self.update(bar, completed=done, total=total, visible=done < total)

    def left_s(self, what: str) -> float | None:
        """Return about how long the rest takes; None where nobody knows yet."""
        return self._tasks[self._bar_of[what]].time_remaining
