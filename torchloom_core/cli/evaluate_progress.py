"""Say on stderr how far an evaluation is, and about how much longer it takes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from torchloom_core.cli.output import span
from torchloom_core.clock import SECOND_NS, Clock, SystemClock

_QUIET_NS = 30 * SECOND_NS
_SHARE_A_LINE = 0.01

Told = Callable[[str, float, float], None]
"""Told what is being done, how much of it is over, and how much there is."""


@contextmanager
def progress() -> Iterator[Told]:
    """Yield what shows a bar where stderr is a terminal, and elsewhere now and then a line."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lines(SystemClock(), lambda line: sys.stderr.write(f"{line}\n"))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=err, transient=True) as bars:
        bar_of: dict[str, TaskID] = {}
        pace = Pace(SystemClock())

        def told(what: str, done: float, total: float) -> None:
            left = pace.left(what, done, total)
            if what not in bar_of:
                bar_of[what] = bars.add_task(what, total=total, left=left)
            bars.update(bar_of[what], completed=done, total=total, left=left)

        yield told


def lines(clock: Clock, say: Callable[[str], object]) -> Told:
    """Return what says a line for each further hundredth, but none within 30 s of the last."""
    pace = Pace(clock)
    last_ns, last_share = clock.now_ns(), 0.0

    def told(what: str, done: float, total: float) -> None:
        nonlocal last_ns, last_share
        left, share = pace.left(what, done, total), done / total
        if clock.now_ns() - last_ns < _QUIET_NS or 0 <= share - last_share < _SHARE_A_LINE:
            return
        last_ns, last_share = clock.now_ns(), share
        how_far = f"{done:g} of {total:g}" if total > 1 else f"{share:.0%}"
        say(", ".join(filter(None, (f"{what} {how_far}", left))))

    return told


class Pace:
    """How long the rest takes if it goes on as it went so far.

    What was over when it began, or is over all at once, such as runs that are found finished,
    says nothing about that.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._what, self._since_ns = "", 0
        self._done = self._found = 0.0

    def left(self, what: str, done: float, total: float) -> str:
        """Take note of how much is over; return about how long the rest takes.

        Empty where nobody knows yet, and at the end.
        """
        now_ns = self._clock.now_ns()
        if what != self._what:
            self._what, self._since_ns = what, now_ns
            self._done = self._found = done
        if done - self._done > 1:
            self._found += done - self._done
        self._done = done
        worked = done - self._found
        if not worked or done >= total:
            return ""
        left_s = (now_ns - self._since_ns) / SECOND_NS / worked * (total - done)
        return f"about {span(left_s)} left"
