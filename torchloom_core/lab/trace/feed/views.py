"""The views that a predictor would have had live, for fitting and scoring on a trace."""

from collections.abc import Callable, Iterator, Sequence

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.contract import needs_problem
from torchloom_core.interface.needs import NeedPast, PredictorNeed, windows_s
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.live.fleet.sample_stretch import SampleStretch
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.events import NodeFault
from torchloom_core.wire.messages import Exit, Hello

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
    """Yield a view every ``every_s``, in time order.

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
    repair_s : float
        Shortest outage after a fatal fault with an unknown end, seconds.
    start_ns, end_ns : int, optional
        The span; by default that of the bundle.
    shows : callable
        Whether an event appears as a fault.

    Yields
    ------
    FleetView
        Valid until the next one.

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
