"""Judge a node by the faults it had: what failed lately fails again sooner than its peers."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from torchloom_core.plugin import (
    Fault,
    FleetView,
    Hazard,
    NotNegative,
    Positive,
    Registry,
    hookimpl,
)

_DAY_S = 86_400.0


class FaultHistoryPredictor:
    """Turn an exponentially decayed count of a node's faults into its hazard.

    Faults are taken for a Poisson process whose rate has a gamma prior worth ``prior_days`` of
    observation at ``prior_faults_per_day``. Each incident counts 2^(-age / half_life_s), so all
    the past is worth half_life_s / ln 2 of observation, and the rate's posterior mean is

        rate = (prior_faults_per_day x prior_days + sum of weights)
               / (prior_days + half_life_days / ln 2)

    (gamma-Poisson conjugacy, Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.6).
    A node's rate is shared evenly by its workers, so that they have it together:
    hazard = 1 - exp(-rate / workers x horizon).
    """

    name = "fault_history"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.fault_history]``.

        Attributes
        ----------
        half_life_s : float
            Age at which a fault counts half, seconds. Faults are known for one day.
        prior_faults_per_day : float
            Faults of a node in a day before anything is known of it; 0.0065 is what Meta
            measured on RSC-1 (Kokolis et al., "Revisiting Reliability", 2024).
        prior_days : float
            How many days of observation that prior is worth.
        incident_s : float
            Faults on one node closer together than this are one incident, seconds: a node that
            dies takes all its workers along.
        horizon_s : float
            How far ahead the probability looks, seconds.
        every_s : float
            How often to forecast, seconds.
        """

        half_life_s: Positive = 6 * 3600.0
        prior_faults_per_day: NotNegative = 0.0065
        prior_days: Positive = 1.0
        incident_s: NotNegative = 60.0
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = ()

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN for workers that left or are gone."""
        options = self._options
        places = [node or worker for node, worker in zip(view.node, view.workers, strict=True)]
        present = ~view.is_in("left", "gone")
        sharing: dict[str, int] = {}
        for row in np.flatnonzero(present).tolist():
            sharing[places[row]] = sharing.get(places[row], 0) + 1

        incidents = _incidents(view.faults, options.incident_s)
        days = options.prior_days + options.half_life_s / math.log(2) / _DAY_S
        expected = options.prior_faults_per_day * options.prior_days
        horizon_days = options.horizon_s / _DAY_S
        hazard_of = {}
        for place, workers in sharing.items():
            decayed = sum(
                0.5 ** ((view.now_s - at_s) / options.half_life_s)
                for at_s in incidents.get(place, ())
            )
            hazard_of[place] = -math.expm1(-(expected + decayed) / days / workers * horizon_days)
        probability = np.array([hazard_of.get(place, math.nan) for place in places])
        probability[~present] = np.nan
        why = {
            row: f"{places[row]} had {_times(len(incidents[places[row]]))} in the last day"
            for row in np.flatnonzero(present).tolist()
            if places[row] in incidents
        }
        return Hazard(probability=probability, why=why)


def _incidents(faults: Sequence[Fault], incident_s: float) -> dict[str, list[float]]:
    """Return the time of each incident, seconds since the epoch, per node or lone worker."""
    starts: dict[str, list[float]] = {}
    latest: dict[str, float] = {}
    for fault in faults:
        place, at_s = fault.node or fault.worker, fault.ts_ns / 1e9
        if place not in latest or at_s - latest[place] > incident_s:
            starts.setdefault(place, []).append(at_s)
        latest[place] = at_s
    return starts


def _times(incidents: int) -> str:
    return "1 fault" if incidents == 1 else f"{incidents} faults"


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(FaultHistoryPredictor)
