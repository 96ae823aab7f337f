"""Calibrate forecasts, set the threshold, and score the time after training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, scored_incidents, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    judge,
    random_scores,
)
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.fitting.time_split import Fitting, days
from torchloom_core.lab.learning.calibration import Calibration, calibrate
from torchloom_core.lab.learning.forecast_score import ForecastScore, alarm_unit
from torchloom_core.lab.learning.skill import with_verdict


@dataclass(frozen=True, eq=False)
class CalibratedForecasts:
    """The forecasts of one predictor, calibrated.

    Attributes
    ----------
    earlier : Judged
        On the calibration time, by the first fit.
    later : BacktestForecasts
        On the time to score, by the final fit.
    """

    earlier: Judged
    later: BacktestForecasts
    calibration: Calibration


def calibrated(
    fitting: Fitting,
    name: str,
    earlier: BacktestForecasts,
    later: BacktestForecasts,
    prevalence: float,
) -> CalibratedForecasts:
    """Calibrate the forecasts of one predictor.

    Parameters
    ----------
    name : str
        The predictor, for errors.
    earlier, later : BacktestForecasts
        By the first fit, from its training time to ``until_ns``; by the final fit, from there
        on.
    prevalence : float
        Of the first fit's training time.

    Raises
    ------
    PluginError
        If there is no forecast in the calibration time.
    """
    split = fitting.split
    judged = judge(
        fitting.bundle,
        earlier.between(split.calibrated_from_ns, split.calibrated_until_ns),
        fitting.task,
        known_until_ns=split.until_ns,
    )
    is_judged = ~np.isnan(judged.outcome)
    if is_judged.any() and np.isnan(judged.score[is_judged]).all():
        on = days(split.calibrated_until_ns - split.calibrated_from_ns)
        raise PluginError(
            f"predictor {name}: need a probability at some labelled moment of the {on} days "
            "of calibration, was none"
        )
    calibration = calibrate(
        judged.score,
        judged.outcome,
        failures=len(scored_incidents(judged, judged.alarms(math.inf)).incident),
        prevalence=prevalence,
    )
    unseen = split.fitted_until_ns + 1, split.until_ns - 1
    carried_over = calibration.carried_over(
        earlier.between(*unseen).score, later.between(*unseen).score
    )
    scored = later.between(split.until_ns, split.end_ns)
    return CalibratedForecasts(
        replace(judged, score=calibration.apply(judged.score)),
        scored.with_score(carried_over.apply(scored.score)),
        carried_over,
    )


def random_forecasts(forecasts: CalibratedForecasts, seed: int) -> CalibratedForecasts:
    """Return random scores at the same moments."""
    earlier, later = forecasts.earlier.score, forecasts.later.score
    values = random_scores((len(earlier) + len(later), *later.shape[1:]), seed)
    return CalibratedForecasts(
        replace(forecasts.earlier, score=values[: len(earlier)]),
        forecasts.later.with_score(values[len(earlier) :]),
        Calibration(),
    )


def scored(
    fitting: Fitting,
    name: str,
    forecasts: CalibratedForecasts,
    others: Mapping[str, CalibratedForecasts],
    flags: tuple[str, ...] = (),
) -> ForecastScore:
    """Set the threshold on the calibration time, and score the time after ``until_ns``."""
    settings, split = fitting.settings, fitting.split
    budget = settings.false_alarms_per_node_day
    found = score(
        judge(fitting.bundle, forecasts.later, fitting.task),
        predictor=name,
        threshold=threshold_for(forecasts.earlier, budget),
        threshold_from=(
            f"for {alarm_unit(fitting.watched, [budget]).rate_text(budget)} on the "
            f"{days(split.calibrated_until_ns - split.calibrated_from_ns)} days of calibration"
        ),
        others={rival: other.later.score for rival, other in others.items()},
        allowed_per_node_day=budget,
        flags=flags + forecasts.calibration.flags,
    )
    return with_verdict(found)
