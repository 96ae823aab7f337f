"""Predict failures from a node's fault history: nodes that failed recently fail again sooner."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from itertools import compress, product
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import (
    FaultColumns,
    FitSize,
    GatheredLearner,
    Gathering,
    History,
    Reasons,
    Rows,
    RowSample,
    faults_in_words,
    json_part,
    known_s,
)
from torchloom_core.plugin import (
    Example,
    FleetView,
    Floats,
    Hazard,
    ModelError,
    NeedFaults,
    NotNegative,
    Positive,
    Registry,
    hookimpl,
    places_of,
)

_DAY_S = 86_400.0
_HALF_LIVES_S = tuple(days * _DAY_S for days in (0.25, 1, 4, 10, 20, 40, 100, 400, 1000))
_PRIOR_DAYS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_LATER = 0.5
"""The last share of the training time, on which half life and prior are chosen."""

_PART = "fault_history.json"


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters from :meth:`FaultHistoryPredictor.fit`, or before from the options."""

    half_life_s: Positive
    prior_faults_per_day: NotNegative
    prior_days: Positive


class FaultHistoryPredictor(GatheredLearner):
    """Turn an exponentially decayed count of a node's faults into its hazard.

    Faults are modelled as a Poisson process whose rate has a gamma prior worth ``prior_days`` of
    observation at ``prior_faults_per_day``. Each incident counts 2^(-age / half_life_s), so the
    whole past is worth half_life_s / ln 2 of observation, and the posterior mean of the rate is

        rate = (prior_faults_per_day x prior_days + sum of weights)
               / (prior_days + half_life_days / ln 2)

    (gamma-Poisson conjugacy, Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.6).
    A node's rate is split evenly among its workers: hazard = 1 - exp(-rate / workers x horizon).

    ``fit`` takes the prior rate from the earlier half of the training time, and the half life and
    ``prior_days`` that maximise the likelihood of the later half.
    """

    name = "fault_history"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.fault_history]``."""

        half_life_s: Positive = 6 * 3600.0
        """Age at which a fault counts half, seconds, before fitting."""
        fit_half_lives_s: tuple[Positive, ...] = _HALF_LIVES_S
        """Other half lives to choose from when fitting, seconds. Faults are remembered for five
        times the longest."""
        prior_faults_per_day: NotNegative = 0.0065
        """Prior faults of a node per day; Meta measured 0.0065 on RSC-1 (Kokolis et al.,
        "Revisiting Reliability", 2024)."""
        prior_days: Positive = 1.0
        """Weight of the prior, in days of observation."""
        incident_s: NotNegative = 60.0
        """Faults on one node closer together than this are one incident, seconds: a failing node
        ends all its workers."""
        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 200_000
        """Most healthy moments of workers to learn from."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        self._max_healthy = options.max_healthy
        self._half_lives_s = tuple(dict.fromkeys((options.half_life_s, *options.fit_half_lives_s)))
        self._incident_s = options.incident_s
        self._faults = FaultColumns(self._half_lives_s, options.incident_s, groups=None)
        self._learned = Learned(
            half_life_s=options.half_life_s,
            prior_faults_per_day=options.prior_faults_per_day,
            prior_days=options.prior_days,
        )
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = (NeedFaults(self._faults.memory_s),)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN for workers that left or are gone."""
        history, workers = self._history(view)
        weighed = history.decayed[:, self._half_lives_s.index(self._learned.half_life_s)]
        probability = _hazard(self._learned, weighed, workers, self.horizon_s)
        struck = np.flatnonzero((history.faults > 0) & ~np.isnan(probability))
        places, memory_s = places_of(view), known_s(view, self._faults.memory_s)

        def explain(at: NDArray[np.intp]) -> list[str]:
            return [
                f"{places[row]} had {faults_in_words(history.faults[row], memory_s)}"
                f", decayed to {weighed[row]:.2g}"
                for row in struck[at].tolist()
            ]

        return Hazard(probability=probability, why=Reasons(struck, probability, 0.0, explain))

    def _history(self, view: FleetView) -> tuple[History, Floats]:
        """Return what :meth:`_compute_history` does, cached by view."""
        return view.once(self, self._compute_history)

    def _compute_history(self, view: FleetView) -> tuple[History, Floats]:
        """Return each node's history, and ``(workers,)`` numbers of workers on the same node.

        The latter is NaN for workers that left or are gone.
        """
        present = ~view.is_in("left", "gone")
        places = places_of(view)
        sharing = Counter(compress(places, present.tolist()))
        workers = np.array([float(sharing[place]) for place in places])
        workers[~present] = np.nan
        return self._faults.history(self._faults.compute(view)), workers

    def learning_bytes(self, size: FitSize) -> int:
        """Return the most memory that learning takes, bytes."""
        return size.sample_bytes(self._max_healthy, len(self._half_lives_s) + 1)

    @property
    def sampled(self) -> Hashable:
        """A key of its rows."""
        return self.name, self._half_lives_s, self._incident_s, self._max_healthy

    def gathering(self) -> Gathering:
        """Return a new gathering of its rows: decayed faults, and workers per node."""
        return _Histories(self._history, self._max_healthy)

    def learn(self, rows: Rows) -> None:
        """Choose half life and prior by the likelihood of the rows' later part."""
        earlier, later = rows.split(_LATER, self.horizon_s)
        if not (earlier.failed.any() and later.failed.any()):
            earlier = later = rows
        rate = _faults_per_day(earlier, self.horizon_s)
        candidates = [
            Learned(half_life_s=half_life_s, prior_faults_per_day=rate, prior_days=prior_days)
            for half_life_s, prior_days in product(self._half_lives_s, _PRIOR_DAYS)
        ]
        best = max(candidates, key=lambda candidate: self._log_likelihood(candidate, later))
        self._learned = msgspec.structs.replace(
            best, prior_faults_per_day=_faults_per_day(rows, self.horizon_s)
        )

    def _log_likelihood(self, learned: Learned, rows: Rows) -> float:
        column = self._half_lives_s.index(learned.half_life_s)
        workers = rows.features[:, -1]
        hazard = _hazard(learned, rows.features[:, column], workers, self.horizon_s)
        failing = np.log(np.maximum(hazard[rows.failed], 1e-300)).sum()
        return float(failing + np.log1p(-hazard[~rows.failed]).sum() / rows.share)

    def parts(self) -> Mapping[str, bytes]:
        """Return the parameters, as JSON."""
        return {_PART: msgspec.json.encode(self._learned)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the part; ModelError if it is damaged, or its half life is not an option."""
        learned = json_part(parts, _PART, Learned)
        if learned.half_life_s not in self._half_lives_s:
            allowed = ", ".join(f"{s:g}" for s in self._half_lives_s)
            raise ModelError(
                f"{_PART}: need half_life_s of the options, {allowed}, was {learned.half_life_s:g}"
            )
        self._learned = learned


class _Histories:
    """Gathers the decayed faults of nodes, with the numbers of workers per node."""

    def __init__(
        self, history: Callable[[FleetView], tuple[History, Floats]], max_healthy: int
    ) -> None:
        self._history = history
        self._sample = RowSample(max_healthy, seed=0)

    def add(self, example: Example) -> None:
        """Add one example."""
        history, workers = self._history(example.view.with_labels(()))  # as in a forecast
        outcome = np.where(np.isnan(workers), np.nan, example.outcome)
        rows = np.concatenate([history.decayed, workers[:, None]], axis=1)
        self._sample.add(example.view.now_ns, rows, outcome)

    def rows(self, predictor: str) -> Rows:
        """Return the rows, or raise a PluginError."""
        return self._sample.rows(predictor)


def _hazard(learned: Learned, weighed: Floats, workers: Floats, horizon_s: float) -> Floats:
    """Return each worker's probability by the formula of the class."""
    days = learned.prior_days + learned.half_life_s / math.log(2) / _DAY_S
    expected = learned.prior_faults_per_day * learned.prior_days
    rate = (expected + weighed) / days / workers
    hazard: Floats = -np.expm1(-rate * horizon_s / _DAY_S)
    return hazard


def _faults_per_day(rows: Rows, horizon_s: float) -> float:
    """Return a node's mean rate, from the share of positive moments."""
    failures = float(rows.failed.sum())
    share = failures / (failures + (~rows.failed).sum() / rows.share)
    per_worker = -math.log1p(-min(share, 1 - 1e-9)) / (horizon_s / _DAY_S)
    return per_worker * float(rows.features[:, -1].mean())


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(FaultHistoryPredictor)
