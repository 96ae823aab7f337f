"""Refuse forecasts that depend on later data: repeat them on a trace with another future."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import LeakError
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import BacktestForecasts
from torchloom_core.lab.learning.forecast_score import FUTURE_FEATURE
from torchloom_core.lab.trace.bundle.bundle import Bundle, DerivedBundle
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Event

if TYPE_CHECKING:
    import pyarrow as pa

_LATER_NS = 977 * SECOND_NS


class OtherFuture(DerivedBundle):
    """A bundle in which all data with ``t_avail`` after ``after_ns`` is altered.

    Values differ, events are later and of another kind, every component that ever failed fails once
    more, and later actions are missing.
    """

    def __init__(self, bundle: Bundle, after_ns: int) -> None:
        super().__init__(bundle)
        self._after_ns = after_ns

    def events(self) -> tuple[Event, ...]:
        """Return the events, altered where they became available later."""
        events = [self._changed(event) for event in self._bundle.events()]
        failed = sorted({event.component for event in events})
        again = [
            Event(
                id=f"other_future/{component}",
                t_event=self._after_ns + 1,
                t_avail=self._after_ns + 1,
                component=component,
                kind="other_future",
            )
            for component in failed
            if self._after_ns < self.manifest.end_ns
        ]
        return tuple(sorted(events + again, key=lambda event: (event.t_event, event.id)))

    def _changed(self, event: Event) -> Event:
        if event.t_avail > self._after_ns:
            at_ns = max(event.t_event, self._after_ns) + _LATER_NS
            return replace(
                event,
                t_event=at_ns,
                t_avail=at_ns,
                t_resolved=None,
                kind="other_future",
                fatal=not event.fatal,
            )
        if event.t_resolved is not None and event.t_resolved > self._after_ns:
            return replace(event, t_resolved=event.t_resolved + _LATER_NS)
        return event

    def actions(self) -> tuple[ActionTaken, ...]:
        """Return the actions that were available by then."""
        return tuple(a for a in self._bundle.actions() if a.t_avail <= self._after_ns)

    def telemetry(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Iterator["pa.Table"]:
        """Yield the telemetry, with later values altered."""
        import pyarrow.compute as pc

        for table in self._bundle.telemetry(start_ns, end_ns, metrics):
            other = pc.subtract(17.0, pc.multiply(table["value"], 3.0))
            value = pc.if_else(pc.greater(table["t_avail"], self._after_ns), other, table["value"])
            yield table.set_column(table.column_names.index("value"), "value", value)


def refuse_future(
    place: str,
    forecasts: BacktestForecasts,
    bundle: Bundle,
    repeat: Callable[[Bundle, int], BacktestForecasts],
    *,
    after_ns: int,
) -> None:
    """Refuse forecasts that change if only data of the trace after ``after_ns`` is altered.

    ``place`` names the predictor; ``repeat`` gives its forecasts for another bundle, up to a time.
    LeakError (``future_feature``) if a forecast at or before ``after_ns`` is not identical.
    """
    was = forecasts.between(bundle.manifest.start_ns, after_ns)
    now = repeat(OtherFuture(bundle, after_ns), after_ns)
    where = "the forecast times"
    if np.array_equal(was.times_ns, now.times_ns):
        differs = (was.score != now.score) & ~(np.isnan(was.score) & np.isnan(now.score))
        if not differs.any():
            return
        time, row = np.argwhere(differs)[0]
        where = f"the forecast for {was.watched.ids[row]} at {moment_text(int(was.times_ns[time]))}"
    raise LeakError(
        f"{place}: {FUTURE_FEATURE}: need forecasts up to {moment_text(after_ns)} that do not "
        f"depend on later data, but {where} changed: it reads the future, or keeps state outside "
        f"the instance"
    )
