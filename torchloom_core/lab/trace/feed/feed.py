"""Turn a trace into the inputs that a kernel would have had live, and a predictor's views.

Replays and fits read a trace only through this module: each input contains what was available at
its time, and nothing later changes it.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.config.ranges import MOST
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import PluginError, TraceError
from torchloom_core.interface.contract import needs_problem
from torchloom_core.interface.needs import NeedPast, PredictorNeed, windows_s
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.feed.roster import roster
from torchloom_core.lab.trace.feed.scrapes import Scrapes
from torchloom_core.lab.trace.feed.watched import Watched, watch
from torchloom_core.live.fleet.samples import SampleStretch, SampleTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.events import NodeFault, Tick
from torchloom_core.wire.messages import Exit, Hello

_MAX_TICKS = 100_000_000
"""A replay of as many takes hours; a year has as many ticks of a third of a second."""

_MAX_CELLS = 1 << 19
"""Numbers per stretch, 4 MB, unless a single tick has more."""

FeedMessage = Hello | Exit | NodeFault | SampleTable | Tick
"""The inputs of a feed."""


class Feed:
    """Iterate over ``(ts_ns, message)``, the inputs of a kernel.

    First come the faults known at the start, then a hello of every watched component in service.
    Every tick is a :class:`SampleTable` of all components seen so far and a :class:`Tick`; faults,
    exits and hellos come between ticks, when they became known. Each iteration starts over.
    Without metrics to read, every component that is not away reports at every tick.

    Parameters
    ----------
    tick_s : float
        Seconds between ticks; the first is one tick after the start.
    repair_s : float
        Shortest outage after a fatal fault with an unknown end, seconds: see
        :mod:`torchloom_core.lab.trace.feed.silences`.
    start_ns, end_ns, metrics
        Span and metrics to read; by default all of the bundle's.
    shows : callable
        Whether an event appears as a fault.
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
        # A metric that the trace lacks takes as much memory in a fleet.
        self._wanted = max(1, len(wanted))
        self._repair_s = repair_s
        self._shows = shows
        if self._tick_ns <= 0:
            raise TraceError(f"{bundle.path}: need tick_s > 0, was {tick_s:g}")
        if (self.end_ns - self.start_ns) // self._tick_ns > _MAX_TICKS:
            raise TraceError(
                f"{bundle.path}: need at most {_MAX_TICKS} ticks in its span, was tick_s "
                f"{tick_s:g}: use a longer one"
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
            values, reported = message.values[:, 0].T, message.reported[0]
            yield ts_ns, SampleTable(message.workers, message.metrics, values, reported)
            yield ts_ns, Tick()

    def stretches(
        self, from_ns: int, every_ns: int
    ) -> Iterator[tuple[int, NodeFault | Exit | Hello | SampleStretch]]:
        """Iterate over the same inputs, with consecutive ticks combined to one stretch.

        Stretches of a large fleet are split to limit memory. A stretch ends at ``from_ns`` plus
        every multiple of ``every_ns``, which is whole ticks.
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
        scrapes = None
        if self.metrics:
            scrapes = Scrapes(self._bundle, self.watched, self.metrics, start_ns=self.start_ns)
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

    def _stretch(
        self, present: "_Present", scrapes: Scrapes | None, first_ns: int, last_ns: int
    ) -> SampleStretch:
        """Return the samples from one tick to another, or to the limit of ``_MAX_CELLS``."""
        workers, rows = present.seen()
        places = len(self.watched.ids) if scrapes is None else scrapes.places
        at_once = max(1, _MAX_CELLS // (places * self._wanted))
        end_ns = min(last_ns + 1, first_ns + at_once * self._tick_ns)
        ts_ns = np.arange(first_ns, end_ns, self._tick_ns, dtype=np.int64)
        if scrapes is None:
            shape = (len(ts_ns), len(rows))
            reported = np.broadcast_to(present.is_there[rows], shape)
            return SampleStretch(workers, (), ts_ns, np.empty((0, *shape)), reported)
        values, reported = scrapes.until(ts_ns)
        return SampleStretch(workers, self.metrics, ts_ns, values[..., rows], reported[:, rows])


class _Present:
    """The watched components that have sent a hello, and ``(watched,)``: which are in service."""

    def __init__(self, watched: Watched) -> None:
        self._row_of = {worker: row for row, worker in enumerate(watched.ids)}
        self._seen: dict[str, int] = {}
        self._workers: tuple[str, ...] = ()
        self._rows = np.zeros(0, dtype=np.intp)
        self.is_there = np.zeros(len(watched.ids), dtype=np.bool_)

    def take(self, message: FeedMessage) -> None:
        """Apply a hello or an exit."""
        if isinstance(message, Hello | Exit):
            row = self._row_of[message.worker]
            self._seen[message.worker] = row
            self.is_there[row] = isinstance(message, Hello)

    def seen(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        """Return the workers that sent a hello, and their rows; the same objects until one more."""
        if len(self._workers) < len(self._seen):
            self._workers = tuple(self._seen)
            self._rows = np.array(list(self._seen.values()), dtype=np.intp)
        return self._workers, self._rows


STALE_TICKS = 3
"""Ticks without a valid sample after which ``latest`` gives NaN."""


def views(
    bundle: Bundle,
    *,
    needs: Sequence[PredictorNeed],
    tick_s: float,
    every_s: float,
    repair_s: float,
    start_ns: int | None = None,
    end_ns: int | None = None,
    costs: Costs | None = None,
    shows: Callable[[Event], bool] = lambda _: True,
) -> Iterator[FleetView]:
    """Yield a view every ``every_s``, in time order; it is valid until the next one.

    The feed starts early enough to fill the longest window at ``start_ns``, as far as the trace
    goes back, or at the start of the trace if ``needs`` has a NeedPast.

    Parameters
    ----------
    needs : sequence of Need, NeedFaults or NeedPast
        The needs that the predictor declares: views have only these metrics, and faults for as
        long as declared, also from before the start.
    tick_s : float
        Seconds between the samples of a window.
    every_s : float
        Rounded to whole ticks, at least one; the first view is that long after the start.
    repair_s, start_ns, end_ns, shows
        As of :class:`Feed`.

    Raises
    ------
    PluginError
        If a need cannot be met, such as a window of more than 100,000 ticks.
    TraceError
        If the trace has no component to watch, or the span is empty.
    """
    problem = needs_problem("predictor", needs, tick_s)
    if problem:
        raise PluginError(problem)
    begin_ns = bundle.manifest.start_ns if start_ns is None else start_ns
    feed = Feed(
        bundle,
        tick_s=tick_s,
        repair_s=repair_s,
        start_ns=_warm_up_from(bundle, needs, tick_s, begin_ns),
        end_ns=end_ns,
        metrics=list(windows_s(needs)),
        shows=shows,
    )
    fleet = FleetState(
        needs,
        tick_s=tick_s,
        stale_after_s=STALE_TICKS * tick_s,
        forget_after_s=MOST,  # a trace has the same components throughout
        costs=costs or Costs(),
    )
    tick_ns = round(tick_s * SECOND_NS)
    every_ns = tick_ns * max(1, round(every_s / tick_s))
    for ts_ns, message in feed.stretches(begin_ns, every_ns):
        match message:
            case SampleStretch():
                fleet.receive_stretch(message)
                if ts_ns > begin_ns and (ts_ns - begin_ns) % every_ns == 0:
                    yield fleet.view(ts_ns, {})
            case Hello():
                fleet.register(message, ts_ns)
            case Exit():
                fleet.end(message, ts_ns)
            case NodeFault():
                fleet.note_fault(message)


def _warm_up_from(
    bundle: Bundle, needs: Sequence[PredictorNeed], tick_s: float, begin_ns: int
) -> int:
    """Return a whole number of ticks before ``begin_ns``, no earlier than the bundle's start."""
    tick_ns = round(tick_s * SECOND_NS)
    past_ns = max(0, begin_ns - bundle.manifest.start_ns)
    window_ns = round(max(windows_s(needs).values(), default=0.0) * SECOND_NS)
    if any(isinstance(need, NeedPast) for need in needs):
        window_ns = past_ns
    return begin_ns - min(-(-window_ns // tick_ns), past_ns // tick_ns) * tick_ns
