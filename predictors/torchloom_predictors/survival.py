"""Predict failures by a survival model: hazard by time since the last fault, and fault history."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import (
    Features,
    FitSize,
    RowSample,
    faults_in_words,
    in_words,
    json_part,
    known_s,
)
from torchloom_core.plugin import (
    Example,
    FleetView,
    Floats,
    Hazard,
    NotNegative,
    Positive,
    Registry,
    hookimpl,
)
from torchloom_predictors.regression import Regression, signed_log

_SINCE_BINS = 10
"""Bins of the time since the last fault, each reaching four times as far as the one before."""

_MOST_STEPS = 32
"""Most intervals that are computed; beyond that, each stands for several."""

_EVEN = 0.01
"""Largest relative difference between the intervals of examples."""

_OF_ALL = "faults a node of the others in the fleet"
"""Prefix of features that are not used, as they are nearly equal for all workers."""

_MODEL, _CARD = "survival.skops", "survival.json"


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's fields other than coefficients."""

    features: tuple[str, ...]
    interval_s: Positive
    """Time between two examples, to which the hazard applies, seconds."""
    share: Positive
    """Share of the intervals without a failure in the training sample."""


class SurvivalPredictor:
    """Estimate the hazard of every future interval, and combine them over the horizon.

    The hazard of an interval is a logistic regression, with a ridge penalty, on the time since
    the node's last fault (in bins), its faults so far and decayed by several half lives, those
    of its rack, and metrics if any are named (discrete-time survival: Allison, "Discrete-Time
    Methods for the Analysis of Event Histories", 1982; Singer and Willett, "It's About Time",
    1993). Each interval of each worker is one training row. Without a fault in between, k intervals
    ahead the last fault is k intervals older and has decayed accordingly, so

        probability = 1 - prod over k < horizon / interval of (1 - hazard(history k ahead))

    Columns enter as signed logarithms, so a metric of hours in service acts as the age in a Weibull
    model. Telemetry is optional. Only a share s of the intervals without a failure is sampled;
    log s is added to the log odds to correct for that.
    """

    name = "survival"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.survival]``."""

        metrics: tuple[str, ...] = ()
        """Metrics to read; () for the fault history only."""
        spans_s: tuple[Positive, ...] = ()
        """Spans over which each metric is aggregated, seconds; () for its newest value only."""
        attributes: tuple[str, ...] = ()
        """Numeric labels of a component, such as its size."""
        groups: tuple[str, ...] = ()
        """Labels that components have in common besides their rack, such as their model."""
        half_lives_s: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (
            86_400.0,
            864_000.0,
            8_640_000.0,
            86_400_000.0,
        )
        """Ages at which a fault counts half, seconds."""
        incident_s: NotNegative = 60.0
        """Faults on one node closer together than this are one incident, seconds."""
        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 200_000
        """Most intervals without a failure to learn from."""
        l2: Positive = 1.0
        """Ridge penalty on the standardised coefficients."""
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0
        """Of the sample."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._features = Features(
            metrics=options.metrics,
            spans_s=options.spans_s,
            attributes=options.attributes,
            groups=options.groups,
            half_lives_s=options.half_lives_s,
            incident_s=options.incident_s,
        )
        self._regression: Any = None
        self._learned = Learned(features=(), interval_s=options.every_s, share=1.0)
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = self._features.needs

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and for workers left or gone."""
        probability = np.full(len(view), np.nan)
        rows = np.flatnonzero(~view.is_in("left", "gone"))
        if self._regression is None or not len(rows):
            return Hazard(probability=probability)
        features = self._features.compute(view)[rows]
        intervals = self.horizon_s / self._learned.interval_s
        steps = min(_MOST_STEPS, math.ceil(intervals))
        aheads_s = [step * self.horizon_s / steps for step in range(steps)]
        log_survival = np.zeros(len(rows))
        for design in self._designs(features, aheads_s):
            sampled = self._regression.log_odds(design)
            odds = sampled + math.log(self._learned.share)
            log_survival -= np.logaddexp(0.0, odds) * intervals / steps
        probability[rows] = -np.expm1(log_survival)
        return Hazard(probability=probability, why=self._reasons(rows, features, view))

    def _reasons(self, rows: NDArray[np.intp], features: Floats, view: FleetView) -> dict[int, str]:
        """Return a text on the node's fault history, for each row with one."""
        history = self._features.history(features)
        memory_s = known_s(view, self._features.fault_memory_s)
        reasons = {}
        for at in np.flatnonzero(history.faults).tolist():
            faults = faults_in_words(history.faults[at], memory_s)
            latest = in_words(history.since_s[at])
            reasons[int(rows[at])] = f"its node had {faults}, the latest {latest} ago"
        return reasons

    def _designs(self, features: Floats, aheads_s: Iterable[float]) -> Iterator[Floats]:
        """Yield ``(rows, columns)`` for the regression, after each further time without a fault."""
        history = self._features.history(features)
        half_lives_s = np.array(self._options.half_lives_s)
        edges_s = self._features.fault_memory_s / 4.0 ** np.arange(_SINCE_BINS - 1, 0, -1)
        had_one = ~np.isnan(history.since_s)[:, None]
        telemetry = features[:, : -len(self._features.history_names)]
        peers = (history.warnings, history.in_group, history.in_same)
        lasting = signed_log(np.column_stack([telemetry, history.faults, *peers]))
        for ahead_s in aheads_s:
            since_bin = np.digitize(history.since_s + ahead_s, edges_s)
            one_hot = (since_bin[:, None] == np.arange(_SINCE_BINS)) & had_one
            faded = history.decayed * 0.5 ** (ahead_s / half_lives_s)
            yield np.column_stack([lasting, signed_log(faded), one_hot])

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn the hazard of the interval between two examples, which have to be evenly spaced.

        A worker failed in an interval if its outcome is 1 before and not after it, or if its node
        had a fault in the interval.
        """
        sample = RowSample(self._options.max_healthy, self._options.seed)
        before: tuple[int, Floats, Floats] | None = None
        interval_s = 0.0
        for example in examples:
            view = example.view
            outcome = np.where(view.is_in("left", "gone"), np.nan, example.outcome)
            if np.isnan(outcome).all():
                continue
            features = self._features.compute(view)
            if before is not None:
                at_ns, seen, to_come = before
                gap_s = (view.now_ns - at_ns) / 1e9
                interval_s = interval_s or gap_s
                if abs(gap_s - interval_s) <= _EVEN * interval_s:
                    workers = len(seen)
                    since_s = self._features.history(features[:workers]).since_s
                    over = (outcome[:workers] != 1.0) | (since_s <= gap_s)
                    failed = np.where(np.isnan(to_come), np.nan, (to_come == 1.0) & over)
                    (design,) = self._designs(seen, [0.0])
                    sample.add(at_ns, design, failed)
            before = view.now_ns, features, outcome
        rows = sample.rows(self.name)
        self._regression = Regression.fit(rows.features, rows.failed, self._options.l2)
        self._learned = Learned(
            features=self._features.names, interval_s=interval_s, share=rows.share
        )

    def learning_bytes(self, size: FitSize) -> int:
        """Return the most memory that learning takes, bytes."""
        columns = len(self._features.names) + len(self._options.half_lives_s) + _SINCE_BINS
        return size.sample_bytes(self._options.max_healthy, columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features that it uses."""
        return tuple(name for name in self._learned.features if not name.startswith(_OF_ALL))

    def parts(self) -> Mapping[str, bytes]:
        """Return the regression as safetensors, and the rest as JSON."""
        return {
            _MODEL: self._regression.to_bytes(),
            _CARD: msgspec.json.encode(self._learned),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the parts; ModelError if one is damaged, or has other features."""
        learned = json_part(parts, _CARD, Learned)
        self._features.refuse_others(learned.features, _CARD)
        # The time since the last fault is in bins.
        columns = len(learned.features) - 1 - len(self._options.half_lives_s) + _SINCE_BINS
        self._regression = Regression.restore(parts, _MODEL, columns)
        self._learned = learned


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(SurvivalPredictor)
