"""Features of a view for predictors that learn: one row of numbers per worker.

A predictor builds one :class:`Features`, declares its ``needs``, and calls ``compute`` with every
view, in ``fit`` and in ``forecast``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ModelError, PluginError
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.needs import Need, NeedFaults, NeedLabels, NeedPast, PredictorNeed
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.learning.fault_columns import FaultColumns, History
from torchloom_core.lab.learning.metric_columns import metric_columns, metric_names
from torchloom_core.lab.learning.words import in_words

_HEARTBEAT_AGE = "seconds since anything was heard"  # a name stored in models
_IN_SERVICE = "seconds in service, where its first sample was seen"
_OF_SEASON = ("sine of the time, period {}", "cosine of the time, period {}")
_RECURRED = 4
"""Least number of seasons to learn from."""
AT_ONCE_S = 3600.0
"""A worker whose first sample is this close to the fleet's may have been in service before."""


@dataclass(frozen=True)
class Features:
    """Numbers from windows of telemetry and from the history of faults, all workers at once.

    Parameters
    ----------
    metrics : tuple of str
        Metrics to read; one that the fleet does not have is NaN.
    spans_s : tuple of float
        Spans to aggregate over, seconds; each is also compared with the span before it.
    half_lives_s : tuple of float
        Ages at which a fault counts half, seconds; () for no fault features.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.
    attributes : tuple of str
        Numeric labels, such as a size or an age, used as they are.
    groups : tuple of str
        Labels that nodes may have in common, such as a model or a cage: adds the faults of those
        other nodes, at every half life.
    past : bool
        Whether to add ages and times since changes. They only grow, so an anomaly detector would
        find every later moment unusual.
    seasons_s : tuple of float
        Periods, seconds: adds the phase of each, as a day has its hours. Failure rates follow the
        hours and weekdays of use (Schroeder and Gibson, "A large-scale study of failures in
        high-performance computing systems", DSN 2006).

    Raises
    ------
    PluginError
        If a metric, span or half life is named twice, or a number is not above 0.

    Examples
    --------
    >>> from torchloom_core.lab.learning import Features
    >>> from torchloom_core.testing import view_of
    >>> features = Features(metrics=("temp",), spans_s=(4.0,))
    >>> view = view_of({"temp": [[50.0] * 4 + [50.0, 51.0, 52.0, 53.0]]})
    >>> row = dict(zip(features.names, features.compute(view)[0].tolist(), strict=True))
    >>> row["mean of temp over 4 s above that of the 4 s before"]
    1.5
    """

    metrics: tuple[str, ...] = ()
    spans_s: tuple[float, ...] = ()
    half_lives_s: tuple[float, ...] = ()
    incident_s: float = 60.0
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    past: bool = True
    seasons_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for what in ("metrics", "spans_s", "half_lives_s", "attributes", "groups", "seasons_s"):
            for one, other in combinations(getattr(self, what), 2):
                if one == other:
                    raise PluginError(f"{what}: need each once, was {one} twice")
        for what in ("spans_s", "half_lives_s", "seasons_s"):
            for seconds in getattr(self, what):
                if not seconds > 0:
                    raise PluginError(f"{what}: need seconds > 0, was {seconds}")

    @property
    def needs(self) -> tuple[PredictorNeed, ...]:
        """The needs to declare for these features."""
        longest = 2 * max(self.spans_s, default=0.0)
        metrics = (Need(metric, longest) for metric in self.metrics)
        faults = (NeedFaults(self.fault_memory_s),) if self.half_lives_s else ()
        past = (NeedPast(self.metrics),) if self.past else ()
        named = tuple(dict.fromkeys((*self.attributes, *self.groups)))
        labels = (NeedLabels(named),) if named else ()
        return (*metrics, *past, *labels, *faults)

    @property
    def fault_memory_s(self) -> float:
        """How long faults have to be remembered, seconds."""
        return self._faults.memory_s

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, as text for reports."""
        metrics = (metric_names(one, self.spans_s, past=self.past) for one in self.metrics)
        ages = (_HEARTBEAT_AGE,) * self._uses_heartbeat + (_IN_SERVICE,) * self.past
        numbers = (*(f"its {name}" for name in self.attributes), *chain.from_iterable(metrics))
        seasons = (text.format(in_words(s)) for s in self.seasons_s for text in _OF_SEASON)
        return (*seasons, *ages, *numbers, *self.history_names)

    def refuse_others(self, names: tuple[str, ...], part: str) -> None:
        """Raise ModelError if the model with this part was fitted with other features."""
        if names != self.names:
            raise ModelError(
                f"{part}: need the {len(self.names)} features of the options, was {len(names)} of "
                f"other options"
            )

    def recurred(self, length_s: float) -> NDArray[np.bool_]:
        """Return ``(features,)``: whether its season, if any, came four times in ``length_s``."""
        learned = np.ones(len(self.names), dtype=bool)
        seen = [length_s >= _RECURRED * season_s for season_s in self.seasons_s for _ in _OF_SEASON]
        learned[: len(seen)] = seen
        return learned

    @property
    def history_names(self) -> tuple[str, ...]:
        """Names of the fault features, which are the last ones."""
        return self._faults.names if self.half_lives_s else ()

    @property
    def _uses_heartbeat(self) -> bool:
        """Whether the age of a worker's last report is a feature.

        Not with faults alone: in a trace all workers then report at every tick, unless another
        predictor reads telemetry, and the model would depend on the predictors beside it.
        """
        return bool(self.metrics) or not self.half_lives_s

    @cached_property
    def _faults(self) -> FaultColumns:
        return FaultColumns(self.half_lives_s, self.incident_s, self.groups)

    @cached_property
    def _attributes(self) -> "_AttributeColumns":
        return _AttributeColumns(self.attributes)

    def of(self, view: FleetView) -> Floats:
        """Return what :meth:`compute` does, cached by view."""
        return view.once(self, self.compute)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, features)``, NaN where unknown, never infinite."""
        blocks = []
        if self.seasons_s:
            blocks.append(np.tile(_in_seasons(view.now_ns, self.seasons_s), (len(view), 1)))
        if self._uses_heartbeat:
            blocks.append(np.asarray(view.heartbeat_age_s)[:, None])
        if self.past:
            blocks.append(_in_service_s(view)[:, None])
        blocks.append(self._attributes.compute(view))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            blocks += metric_columns(view, self.metrics, self.spans_s, past=self.past)
            if self.half_lives_s:
                blocks.append(self._faults.compute(view))
        features = np.concatenate(blocks, axis=1)
        features[~np.isfinite(features)] = np.nan
        return features

    def history(self, features: Floats) -> History:
        """Return the fault columns of computed features; half_lives_s must not be empty."""
        return self._faults.history(features[:, -len(self.history_names) :])


def _in_seasons(now_ns: int, seasons_s: tuple[float, ...]) -> Floats:
    """Return ``(2 x seasons,)``: sine and cosine of a moment's phase in each season."""
    angle = [2.0 * np.pi * (now_ns / SECOND_NS % season_s) / season_s for season_s in seasons_s]
    waves: Floats = np.column_stack([np.sin(angle), np.cos(angle)]).ravel()
    return waves


def _in_service_s(view: FleetView) -> Floats:
    """Return ``(workers,)`` seconds since the first sample; NaN if observation began with it."""
    watched_s = view.watched_s
    longest_s = np.fmax.reduce(watched_s, initial=0.0)
    came_later = watched_s < longest_s - max(AT_ONCE_S, 1.5 * view.tick_s)
    return np.where(came_later, watched_s, np.nan)


class _AttributeColumns:
    """Labels that are numbers; columns are cached while the labels stay the same."""

    def __init__(self, attributes: tuple[str, ...]) -> None:
        self._attributes = attributes
        self._labels: Sequence[Mapping[str, str | float]] = ()
        self._columns: Floats = np.zeros((0, len(attributes)))

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, attributes)``, NaN for a missing label or text."""
        if not self._attributes:
            return np.zeros((len(view), 0))
        if view.labels is not self._labels:
            self._labels = view.labels
            cells = [[row.get(name, "") for name in self._attributes] for row in view.labels]
            known = [[np.nan if isinstance(cell, str) else cell for cell in row] for row in cells]
            self._columns = np.array(known, dtype=float).reshape(len(view), len(self._attributes))
        return self._columns
