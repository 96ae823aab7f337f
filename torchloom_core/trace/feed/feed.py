"""A trace as the inputs a kernel would have had live, in time order.

Whatever replays a trace or fits a predictor reads it through here, so that what is shown at a
moment is what was available then: nothing after it changes a single input before it.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.errors import TraceError
from torchloom_core.fleet.sample_stretch import SampleStretch
from torchloom_core.fleet.sample_table import SampleTable
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.feed.roster import roster
from torchloom_core.trace.feed.scrapes import Scrapes
from torchloom_core.trace.feed.watched import Watched, watch
from torchloom_core.wire.events import NodeFault, Tick
from torchloom_core.wire.messages import Exit, Hello

_MAX_TICKS = 100_000_000
"""Hours' worth of them, of a year every third of a second."""

_MAX_CELLS = 1 << 19
"""Numbers that are made at once, at most, but for those of one tick: 4 MB of them."""

FeedMessage = Hello | Exit | NodeFault | SampleTable | Tick
"""What a feed brings."""


class Feed:
    """Iterate over ``(ts_ns, message)``, the inputs of a kernel.

    First the faults that were known at the start, then a hello of every watched component that
    is there. At every tick a :class:`SampleTable` of all that were ever there, then a
    :class:`Tick`; in between faults, exits and hellos when they could be known. Each iteration
    begins anew.

    Where the trace has no telemetry, or no metric is wanted, every component that is not away
    is heard of at every tick.

    Parameters
    ----------
    tick_s : float
        Seconds between ticks; the first is one tick after the start.
    repair_s : float
        How long a component is away after a fatal fault whose end nobody knows, at the least:
        see :mod:`torchloom_core.trace.feed.ends`.
    start_ns, end_ns : int, optional
        The span; absent: that of the bundle.
    metrics : sequence of str, optional
        Which to read; absent: all.
    shows : callable
        Which events are told as faults.

    Raises
    ------
    TraceError
        If nothing is watched, or the span is empty.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        tick_s: float,
        repair_s: float,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Sequence[str] | None = None,
        shows: Callable[[Event], bool] = lambda _: True,
    ) -> None:
        manifest = bundle.manifest
        self._bundle = bundle
        self._tick_ns = round(tick_s * SECOND_NS)
        self.start_ns = manifest.start_ns if start_ns is None else start_ns
        self.end_ns = manifest.end_ns if end_ns is None else end_ns
        self.watched: Watched = watch(bundle)
        wanted = dict.fromkeys(bundle.metrics if metrics is None else metrics)
        self.metrics = tuple(m for m in wanted if m in bundle.metrics)
        # A fleet makes as many numbers of a metric that the trace lacks.
        self._wanted = max(1, len(wanted))
        self._repair_s = repair_s
        self._shows = shows
        if self._tick_ns <= 0:
            raise TraceError(f"{bundle.path}: need tick_s > 0, was {tick_s:g}")
        if (self.end_ns - self.start_ns) // self._tick_ns > _MAX_TICKS:
            raise TraceError(
                f"{bundle.path}: need at most {_MAX_TICKS} ticks of its time, was tick_s {tick_s:g}"
            )
        if self.start_ns >= self.end_ns:
            raise TraceError(
                f"{bundle.path}: need a start before the end, was "
                f"{moment_text(self.start_ns)} and {moment_text(self.end_ns)}"
            )
        if not self.watched.ids:
            raise TraceError(f"{bundle.path}: need a component to watch, was none")

    def __iter__(self) -> Iterator[tuple[int, FeedMessage]]:
        for ts_ns, message in self.stretches(self.start_ns, self._tick_ns):
            if not isinstance(message, SampleStretch):
                yield ts_ns, message
                continue
            values, heard = message.values[:, 0].T, message.heard[0]
            yield ts_ns, SampleTable(message.workers, message.metrics, values, heard)
            yield ts_ns, Tick()

    def stretches(
        self, from_ns: int, every_ns: int
    ) -> Iterator[tuple[int, NodeFault | Exit | Hello | SampleStretch]]:
        """Iterate over the same, with ticks that nothing else comes between as one stretch.

        Of a large fleet they come as several, so that memory stays small.

        Parameters
        ----------
        from_ns, every_ns : int
            A stretch ends each time that ``every_ns``, whole ticks, have gone by since then.
        """
        changes = roster(
            self._bundle,
            self.watched,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            repair_s=self._repair_s,
            shows=self._shows,
        )
        present = _Present(self.watched)
        scrapes = self._scrapes()
        at = 0
        now_ns = self.start_ns + self._tick_ns
        while now_ns <= self.end_ns:
            while at < len(changes) and changes[at][0] <= now_ns:
                present.take(changes[at][1])
                yield changes[at]
                at += 1
            due_ns = from_ns + every_ns * max(1, -(-(now_ns - from_ns) // every_ns))
            last_ns = min(self.end_ns, due_ns)
            if at < len(changes):
                last_ns = min(last_ns, changes[at][0] - 1)
            stretch = self._stretch(present, scrapes, now_ns, last_ns)
            yield int(stretch.ts_ns[-1]), stretch
            now_ns = int(stretch.ts_ns[-1]) + self._tick_ns
        yield from changes[at:]

    def _scrapes(self) -> Scrapes | None:
        if not self.metrics:
            return None
        return Scrapes(self._bundle, self.watched, self.metrics, start_ns=self.start_ns)

    def _stretch(
        self, present: "_Present", scrapes: Scrapes | None, first_ns: int, last_ns: int
    ) -> SampleStretch:
        """Return the samples from one tick to another, or of as many ticks as may be at once."""
        workers, rows = present.known()
        places = len(self.watched.ids) if scrapes is None else scrapes.places
        at_once = max(1, _MAX_CELLS // (places * self._wanted))
        end_ns = min(last_ns + 1, first_ns + at_once * self._tick_ns)
        ts_ns = np.arange(first_ns, end_ns, self._tick_ns, dtype=np.int64)
        if scrapes is None:
            shape = (len(ts_ns), len(rows))
            heard = np.broadcast_to(present.is_there[rows], shape)
            return SampleStretch(workers, (), ts_ns, np.empty((0, *shape)), heard)
        values, heard = scrapes.until(ts_ns)
        return SampleStretch(workers, self.metrics, ts_ns, values[..., rows], heard[:, rows])


class _Present:
    """Which watched components have said hello, and which of them are there.

    Attributes
    ----------
    is_there : (watched,) bool
        False for those that ended or never came.
    """

    def __init__(self, watched: Watched) -> None:
        self._row_of = {worker: row for row, worker in enumerate(watched.ids)}
        self._told: dict[str, int] = {}
        self._workers: tuple[str, ...] = ()
        self._rows = np.zeros(0, dtype=np.intp)
        self.is_there = np.zeros(len(watched.ids), dtype=np.bool_)

    def take(self, message: FeedMessage) -> None:
        """Take note of a hello or an exit."""
        if isinstance(message, Hello | Exit):
            row = self._row_of[message.worker]
            self._told[message.worker] = row
            self.is_there[row] = isinstance(message, Hello)

    def known(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        """Return those that ever said hello, and ``(workers,)`` their rows among the watched.

        The same objects until there is one more.
        """
        if len(self._workers) < len(self._told):
            self._workers = tuple(self._told)
            self._rows = np.array(list(self._told.values()), dtype=np.intp)
        return self._workers, self._rows
