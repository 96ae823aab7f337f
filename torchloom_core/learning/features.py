"""What learned predictors compute from a view: one row of numbers for every worker.

A predictor builds one :class:`Features`, takes its ``needs`` for its own, and calls ``compute``
with every view, in ``fit`` and in ``forecast`` alike.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import PluginError
from torchloom_core.learning.attribute_columns import AttributeColumns
from torchloom_core.learning.fault_columns import FaultColumns, History
from torchloom_core.learning.metric_columns import metric_columns, metric_names
from torchloom_core.learning.words import in_words
from torchloom_core.plugin.arrays import Floats
from torchloom_core.plugin.needs import Need, NeedFaults, NeedLabels, NeedPast, PredictorNeed
from torchloom_core.plugin.view import FleetView

_HEARD = "seconds since anything was heard"
_IN_SERVICE = "seconds in service, where its first sample was seen"
_OF_SEASON = ("sine of the time, period {}", "cosine of the time, period {}")
_RECURRED = 4
"""What a season does is learned where it was seen so often."""
AT_ONCE_S = 3600.0
"""Whose first sample came no later than this after the fleet's first may have been there before."""


@dataclass(frozen=True)
class Features:
    """Numbers from windows of telemetry and from the history of faults, all workers at once.

    Parameters
    ----------
    metrics : tuple of str
        What is looked at. One that the fleet does not measure is unknown throughout.
    spans_s : tuple of float
        Over how long, seconds; each is also compared with as long a span before it.
    half_lives_s : tuple of float
        Ages at which a fault counts half, seconds; none: nothing about faults.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.
    attributes : tuple of str
        Labels that are numbers, such as a size or an age: looked at as they are.
    groups : tuple of str
        Labels that others may have too, such as a model or a cage: faults of those others are
        looked at, at every half life.
    past : bool
        Whether to look at for how long things have been so. To what learns only what is usual
        every later moment would be unusual by that.
    seasons_s : tuple of float
        Periods, seconds: where in each the moment is, as a day has its hours. How often nodes fail
        follows the hours and weekdays of those who use them (Schroeder and Gibson, "A large-scale
        study of failures in high-performance computing systems", DSN 2006).

    Raises
    ------
    PluginError
        If a metric, span or half life is named twice, or a number is not above 0.

    Examples
    --------
    >>> from torchloom_core.learning import Features
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
        """What a predictor with these features has to declare."""
        longest = 2 * max(self.spans_s, default=0.0)
        metrics = (Need(metric, longest) for metric in self.metrics)
        faults = (NeedFaults(self.fault_memory_s),) if self.half_lives_s else ()
        past = (NeedPast(self.metrics),) if self.past else ()
        named = tuple(dict.fromkeys((*self.attributes, *self.groups)))
        labels = (NeedLabels(named),) if named else ()
        return (*metrics, *past, *labels, *faults)

    @property
    def fault_memory_s(self) -> float:
        """How far back faults have to be remembered, seconds."""
        return self._faults.memory_s

    @property
    def names(self) -> tuple[str, ...]:
        """What each feature is, in words."""
        metrics = (metric_names(one, self.spans_s, past=self.past) for one in self.metrics)
        heard = (_HEARD,) * self._asks_who_is_heard + (_IN_SERVICE,) * self.past
        numbers = (*self._attributes.names, *chain.from_iterable(metrics))
        return (*self._season_names, *heard, *numbers, *self.history_names)

    @property
    def _season_names(self) -> tuple[str, ...]:
        seasons = (in_words(season_s) for season_s in self.seasons_s)
        return tuple(text.format(season) for season in seasons for text in _OF_SEASON)

    def recurred(self, length_s: float) -> NDArray[np.bool_]:
        """Return ``(features,)``: what can be learned from so much time.

        That is all but seasons of which there were fewer than four.
        """
        learned = np.ones(len(self.names), dtype=bool)
        seen = [length_s >= _RECURRED * season_s for season_s in self.seasons_s for _ in _OF_SEASON]
        learned[: len(seen)] = seen
        return learned

    @property
    def history_names(self) -> tuple[str, ...]:
        """What each of the last features is, which are those about faults."""
        return self._faults.names if self.half_lives_s else ()

    @property
    def _asks_who_is_heard(self) -> bool:
        """Whether it looks at when a worker was heard last.

        Who looks at faults alone does not: in a trace everybody is heard at every tick then, unless
        somebody else reads telemetry, and a model would be another by who is beside it.
        """
        return bool(self.metrics) or not self.half_lives_s

    @cached_property
    def _faults(self) -> FaultColumns:
        return FaultColumns(self.half_lives_s, self.incident_s, self.groups)

    @cached_property
    def _attributes(self) -> AttributeColumns:
        return AttributeColumns(self.attributes)

    def of(self, view: FleetView) -> Floats:
        """Return what :meth:`compute` does, computed once for all who ask of the same view."""
        return view.once(self, self.compute)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, features)``, NaN where unknown, never infinite."""
        blocks = []
        if self.seasons_s:
            blocks.append(np.tile(_in_seasons(view.now_ns, self.seasons_s), (len(view), 1)))
        if self._asks_who_is_heard:
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
        """Return the columns about faults of what was computed; there have to be half lives."""
        return self._faults.history(features[:, -len(self.history_names) :])


def _in_seasons(now_ns: int, seasons_s: tuple[float, ...]) -> Floats:
    """Return ``(2 x seasons,)``: sine and cosine of where in each a moment is."""
    angle = [2.0 * np.pi * (now_ns / SECOND_NS % season_s) / season_s for season_s in seasons_s]
    waves: Floats = np.column_stack([np.sin(angle), np.cos(angle)]).ravel()
    return waves


def _in_service_s(view: FleetView) -> Floats:
    """Return ``(workers,)`` seconds since its first sample; NaN of who may have been there before.

    Somebody was, whose first sample came as the watching began.
    """
    watched_s = view.watched_s
    longest_s = np.fmax.reduce(watched_s, initial=0.0)
    came_later = watched_s < longest_s - max(AT_ONCE_S, 1.5 * view.tick_s)
    return np.where(came_later, watched_s, np.nan)
