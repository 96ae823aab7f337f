"""Split a trace's time into training, calibration and scoring, and its training time into folds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.api import Predictor
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import refuse_too_many
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.trace.bundle.bundle import Bundle, DerivedBundle
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Component, Event
from torchloom_core.lab.trace.feed.watched import watch

if TYPE_CHECKING:
    import pyarrow as pa


class EarlierPart(DerivedBundle):
    """The same bundle up to ``end_ns``, without anything that became known later."""

    def __init__(self, bundle: Bundle, end_ns: int) -> None:
        super().__init__(bundle, replace(bundle.manifest, end_ns=end_ns))
        self._end_ns = end_ns

    def topology(self) -> tuple[Component, ...]:
        """Return the components that started by then; later removals are unknown."""
        return tuple(
            replace(part, until_ns=self._known(part.until_ns))
            for part in self._bundle.topology()
            if part.from_ns is None or part.from_ns < self._end_ns
        )

    def events(self) -> tuple[Event, ...]:
        """Return the events known by then."""
        return tuple(
            replace(event, t_resolved=self._known(event.t_resolved))
            for event in self._bundle.events()
            if event.t_avail < self._end_ns
        )

    def actions(self) -> tuple[ActionTaken, ...]:
        """Return the actions known by then."""
        return tuple(
            replace(action, t_end=self._known(action.t_end))
            for action in self._bundle.actions()
            if action.t_avail < self._end_ns
        )

    def telemetry(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Iterator["pa.Table"]:
        """Yield the telemetry that had arrived by then."""
        until_ns = self._end_ns if end_ns is None else min(end_ns, self._end_ns)
        return self._bundle.telemetry(start_ns, until_ns, metrics)

    def _known(self, ts_ns: int | None) -> int | None:
        return None if ts_ns is None or ts_ns >= self._end_ns else ts_ns


_CALIBRATION_SHARE = 0.25
_CUTS, _WIDTH = (0.4, 0.6, 0.8), 0.2
"""Start of each fold's scored part, and its length, as shares of the time."""
_DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, kw_only=True)
class Split:
    """Parts of the time, a horizon apart: no outcome of one part is decided in the next."""

    start_ns: int
    first_until_ns: int
    """Training time of the first fit, which is calibrated."""
    calibrated_from_ns: int
    calibrated_until_ns: int
    """Time to set probabilities and threshold: the last quarter of the time before ``until_ns``,
    less two horizons."""
    fitted_until_ns: int
    """Last moment of the final fit, just before ``calibrated_until_ns``: at least one moment lies
    between it and ``until_ns``, unless a horizon is shorter than the forecast interval."""
    until_ns: int
    end_ns: int
    """Time to score."""


def split(bundle: Bundle, task: Task, *, until_ns: int, every_s: float) -> Split:
    """Split a trace at ``until_ns``; TraceError if a part is shorter than moment and horizon."""
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    if not start_ns < until_ns < end_ns:
        raise TraceError(
            f"{bundle.path}: need --until within the {days(end_ns - start_ns)} days of the trace, "
            f"{moment_text(start_ns)} to {moment_text(end_ns)}, was day {days(until_ns - start_ns)}"
        )
    every_ns = round(every_s * SECOND_NS)
    _refuse_short(bundle, task.horizon_ns, every_ns, until_ns)
    usable_ns = until_ns - start_ns - 2 * task.horizon_ns
    last_ns = until_ns - task.horizon_ns
    cut_ns = last_ns - round(_CALIBRATION_SHARE * usable_ns)
    cut_ns -= (cut_ns - start_ns) % every_ns
    return Split(
        start_ns=start_ns,
        first_until_ns=cut_ns - task.horizon_ns,
        calibrated_from_ns=cut_ns,
        calibrated_until_ns=last_ns,
        fitted_until_ns=last_ns - 1 - (last_ns - 1 - start_ns) % every_ns,
        until_ns=until_ns,
        end_ns=end_ns,
    )


def _refuse_short(bundle: Bundle, horizon_ns: int, every_ns: int, until_ns: int) -> None:
    """Raise TraceError, with remedies, if the time on one side of ``until_ns`` is too short."""
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    before_ns, after_ns = 2 * horizon_ns + 4 * every_ns, horizon_ns + every_ns
    was_before_ns, was_after_ns = until_ns - start_ns, end_ns - until_ns
    if was_before_ns < before_ns:
        what, need_ns, was_ns = "two horizons and four moments before", before_ns, was_before_ns
    elif was_after_ns < after_ns:
        what, need_ns, was_ns = "a horizon and a moment after", after_ns, was_after_ns
    else:
        return
    helps = []
    if every_ns > horizon_ns:
        helps.append(f"--every-s and --tick-s of {horizon_ns / SECOND_NS:g} or less")
    longest_ns = min((was_before_ns - 4 * every_ns) // 2, was_after_ns - every_ns)
    if longest_ns >= SECOND_NS:
        helps.append(f"--option horizon_s={longest_ns // SECOND_NS} or less")
    helps += _later(bundle, before_ns, end_ns - start_ns - after_ns)
    raise TraceError(
        f"{bundle.path}: need {what} --until, {days(need_ns)} d with a horizon of "
        f"{days(horizon_ns)} d, was {days(was_ns)} d: use {', or '.join(helps)}"
    )


def _later(bundle: Bundle, first_ns: int, last_ns: int) -> Iterator[str]:
    """Yield a range for --until that would do, and a longer trace."""
    if isinstance(bundle, EarlierPart):  # a fold
        yield "a later --until"
        return
    if first_ns < last_ns:
        first, last = math.ceil(100 * first_ns / _DAY_NS) / 100, 100 * last_ns // _DAY_NS / 100
        yield f"--until from {first:g}d to {last:g}d"
    yield "a longer trace"


def days(length_ns: int) -> str:
    """Return a length of time in days, to four digits."""
    return f"{length_ns / _DAY_NS:.4g}"


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What a fit is given beside the predictor's own options."""

    until_ns: int
    """End of training: anything that became known later is not used; the time after it is
    scored."""
    tick_s: float
    repair_s: float
    """Spacing of the samples in windows; shortest outage after a failure with an unknown end."""
    every_s: float | None = None
    """Forecast interval, seconds; by default the predictor's own."""
    task: Literal["forecast", "detect"] = "forecast"
    lead_s: float = 0.0
    kinds: tuple[str, ...] = ()
    """As in :class:`~torchloom_core.lab.evaluate.forecasts.labels.Task`."""
    false_alarms_per_node_day: float = 0.01
    seed: int = 0
    known_before: tuple[str, ...] = ()
    """Inputs declared as known beforehand, which are not checked for leaks: metrics, attributes,
    kinds of event, ``its rack`` and ``time in service``."""

    def task_of(self, horizon_s: float) -> Task:
        """Return the task with a horizon."""
        return Task(
            horizon_s=horizon_s,
            repair_s=self.repair_s,
            kind=self.task,
            lead_s=self.lead_s,
            kinds=self.kinds,
        )

    def pace_s(self, plugin: Predictor) -> float:
        """Return the forecast interval of a predictor: whole ticks, at least one."""
        every_s = plugin.every_s if self.every_s is None else self.every_s
        return self.tick_s * max(1, round(every_s / self.tick_s))


class Fitting:
    """One trace, split in time for one predictor and its baselines."""

    def __init__(self, bundle: Bundle, settings: FitSettings, plugin: Predictor) -> None:
        self.bundle = bundle
        self.settings = settings
        self.task = settings.task_of(plugin.horizon_s)
        self.every_s = settings.pace_s(plugin)
        self.split = split(bundle, self.task, until_ns=settings.until_ns, every_s=self.every_s)
        forecast_ns = self.split.end_ns - self.split.calibrated_from_ns
        watched = watch(bundle)
        self.watched = watched.kind
        refuse_too_many(plugin.name, forecast_ns, self.every_s, len(watched.ids))


def folds(bundle: Bundle, settings: FitSettings) -> Iterator[tuple[Bundle, int]]:
    """Yield the trace up to each fold's end, and the start of its scored part."""
    start_ns = bundle.manifest.start_ns
    length_ns = settings.until_ns - start_ns
    for cut in _CUTS:
        end_ns = start_ns + round((cut + _WIDTH) * length_ns)
        yield EarlierPart(bundle, end_ns), start_ns + round(cut * length_ns)
