"""Say on stderr how far a long command is, and about how much longer it takes."""

import math
import sys
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
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lines(time.monotonic, lambda line: sys.stderr.write(f"{line}\n"))
        return
    with _Bars(err, time.monotonic) as bars:
        yield bars.told


def lines(now_s: Callable[[], float], say: Callable[[str], object]) -> Told:
    """Return what says a line for each further hundredth, but none within 30 s of the last."""
    bars = _Bars(None, now_s)
    last_s, last_share = now_s(), 0.0

    def told(what: str, done: float, total: float) -> None:
        nonlocal last_s, last_share
        bars.told(what, done, total)
        share = done / total
        if now_s() - last_s < _QUIET_S or 0 <= share - last_share < _SHARE_A_LINE:
            return
        last_s, last_share = now_s(), share
        how_far = f"{done:g} of {total:g}" if total > 1 else f"{share:.0%}"
        left_s = bars.left_s(what)
        say(f"{what} {how_far}" + (f", about {span(left_s)} left" if left_s else ""))

    return told


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
