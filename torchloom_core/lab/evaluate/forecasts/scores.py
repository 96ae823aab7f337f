"""Score forecasts: per sample, per incident, and against other forecasts.

F1 with point adjustment is not computed, as random scores do well by it (Kim et al., "Towards a
rigorous evaluation of time-series anomaly detection", AAAI 2022).
"""

from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.alarms import (
    Bools,
    Judged,
    ScoredIncidents,
    due_moments,
    found_by_chance,
    leads_s,
    scored_incidents,
)
from torchloom_core.lab.evaluate.forecasts.intervals import (
    Clusters,
    Estimate,
    average_precision,
    exact_rate,
    exact_share,
    ratio,
)
from torchloom_core.lab.learning.forecast_score import (
    FEW,
    MAX_PREVALENCE,
    SUSPICIOUS_SCORE,
    TOO_GOOD,
    CalibrationBin,
    ForecastScore,
    Interval,
    PrPoint,
)
from torchloom_core.lab.learning.ranking import precision_and_recall

PARTLY_UNJUDGED = "partly_unjudged"
NOT_A_PROBABILITY = "not_a_probability"

_UNJUDGED_SHARE = 0.05
_BINS = 10
_CURVE_POINTS = 200


def score(
    judged: Judged,
    *,
    predictor: str,
    threshold: float,
    threshold_from: str,
    others: Mapping[str, Floats] | None = None,
    alarms: Bools | None = None,
    allowed_per_node_day: float | msgspec.UnsetType = msgspec.UNSET,
    flags: tuple[str, ...] = (),
) -> ForecastScore:
    """Return the score of one predictor.

    ``threshold_from`` names the data that the threshold was set on, and ``allowed_per_node_day`` is
    the budget of false alarms; absent for external ``alarms``. Absent alarms are where its score is
    at or above the threshold. ``others`` has the scores of other predictors at the same times, for
    comparison.

    Intervals are those of :class:`Clusters`; with fewer than 20 incidents there are only exact ones
    of counts. A suspiciously high AUPRC adds a flag.
    """
    samples = _Samples(judged)
    alarms = judged.alarms(threshold) if alarms is None else alarms
    of = scored_incidents(judged, alarms)
    false = judged.false_alarms(alarms)
    counts = _Counts(of, false, samples, judged)
    own = samples.average_precision(judged.score)
    auprc = counts.share(own)
    versus = {
        name: counts.difference(own, samples.average_precision(other))
        for name, other in (others or {}).items()
    }
    prevalence = float(samples.positive.mean()) if len(samples.positive) else 0.0
    return ForecastScore(
        predictor=predictor,
        task=judged.task.kind,
        horizon_s=judged.task.horizon_s,
        lead_s=judged.task.lead_s,
        from_ns=int(samples.times_ns[0]),
        until_ns=int(samples.times_ns[-1]),
        components=int((~np.isnan(judged.outcome)).any(axis=0).sum()),
        component_days=judged.component_days,
        samples=len(samples.positive),
        positives=int(samples.positive.sum()),
        prevalence=prevalence,
        incidents=len(of.incident),
        auprc=auprc,
        threshold=threshold,
        threshold_from=threshold_from,
        precision=counts.precision,
        recall=counts.recall,
        f1=_f1(counts.precision.value, counts.recall.value),
        false_alarms_per_node_day=counts.false_rate,
        leads_s=leads_s(judged, of),
        allowed_per_node_day=allowed_per_node_day,
        by_chance=found_by_chance(judged, alarms),
        brier=samples.brier(judged.score),
        calibration=samples.calibration(judged.score),
        curve=samples.curve(judged.score),
        versus=versus,
        flags=flags + _suspicious(auprc, prevalence) + samples.flags(judged.score),
    )


def auprc_of(judged: Judged) -> Estimate:
    """Return the AUPRC of the scored samples, 0 without a positive one."""
    return _Samples(judged).average_precision(judged.score)


class Pool:
    """The scored samples of each predictor, of all traces so far."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[Floats, Bools]]] = {}

    def add(self, predictor: str, judged: Judged) -> None:
        """Add a predictor's forecasts and outcomes on one trace."""
        samples = _Samples(judged)
        of = self._samples.setdefault(predictor, [])
        of.append((samples.ranked(judged.score), samples.positive))

    def auprc(self, predictor: str) -> float:
        """Return the AUPRC of all its samples together, 0 without a positive one."""
        score, positive = zip(*self._samples[predictor], strict=True)
        return average_precision(np.concatenate(score), np.concatenate(positive)).value


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


class _Samples:
    """The scored samples of all components as flat arrays; ``positive`` if an incident followed.

    ``times_ns`` are from the first scored time to the last; all times if none is scored.
    """

    def __init__(self, judged: Judged) -> None:
        self._is_scored: Bools = ~np.isnan(judged.outcome)
        at = np.flatnonzero(self._is_scored.any(axis=1))
        seen = slice(at[0], at[-1] + 1) if len(at) else slice(None)
        self.times_ns: Ints = judged.times_ns[seen]
        self._seen, self._dependence_s = seen, _dependence_s(judged)
        self.positive = judged.outcome[self._is_scored] == 1.0

    @cached_property
    def clusters(self) -> Clusters:
        """The clusters of dependent samples."""
        return Clusters(self.times_ns, self._is_scored[self._seen], self._dependence_s)

    def average_precision(self, score: Floats) -> Estimate:
        return average_precision(self.ranked(score), self.positive)

    def counted(self, time: Ints, component: Ints) -> Floats:
        """Return the number of items per sample, from their times and components."""
        counts: Floats = np.zeros(self._is_scored.shape)
        np.add.at(counts, (time, component), 1.0)
        return counts[self._is_scored]

    def ranked(self, score: Floats) -> Floats:
        """Return the samples' scores, -inf without a forecast."""
        scores = score[self._is_scored]
        return np.where(np.isnan(scores), -np.inf, scores)

    def _forecast(self, score: Floats) -> tuple[Floats, Floats]:
        """Return the samples' forecasts, sorted, and their outcomes."""
        scores = score[self._is_scored]
        has_score = ~np.isnan(scores)
        order = np.argsort(scores[has_score], kind="stable")
        return scores[has_score][order], self.positive[has_score][order].astype(np.float64)

    def flags(self, score: Floats) -> tuple[str, ...]:
        scores = score[self._is_scored]
        unjudged = bool(len(scores)) and float(np.isnan(scores).mean()) > _UNJUDGED_SHARE
        improbable = not _is_probability(scores)
        return (PARTLY_UNJUDGED,) * unjudged + (NOT_A_PROBABILITY,) * improbable

    def brier(self, score: Floats) -> float:
        forecast, outcome = self._forecast(score)
        if not len(forecast) or not _is_probability(forecast):
            return 0.0
        return float(np.mean((forecast - outcome) ** 2))

    def calibration(self, score: Floats) -> tuple[CalibrationBin, ...]:
        """Return bins with about equal numbers of samples."""
        forecast, outcome = self._forecast(score)
        if not _is_probability(forecast):
            return ()
        return tuple(
            CalibrationBin(
                forecast=float(forecast[part].mean()),
                observed=float(outcome[part].mean()),
                samples=len(part),
            )
            for part in np.array_split(np.arange(len(forecast)), _BINS)
            if len(part)
        )

    def curve(self, score: Floats) -> tuple[PrPoint, ...]:
        """Return precision and recall at up to 200 thresholds, from high to low."""
        ranked = self.ranked(score)
        has_score = np.isfinite(ranked)
        total = int(self.positive.sum())
        if not self.positive[has_score].any():
            return ()
        precision, recall, threshold = precision_and_recall(
            ranked[has_score], self.positive[has_score]
        )
        recall = recall * (self.positive[has_score].sum() / total)
        levels = np.linspace(recall[0], 0.0, _CURVE_POINTS)
        nearest = np.searchsorted(-recall, -levels)
        chosen = np.unique(np.minimum(nearest, len(threshold) - 1))[::-1]
        return tuple(
            PrPoint(
                threshold=float(threshold[i]),
                precision=float(precision[i]),
                recall=float(recall[i]),
            )
            for i in chosen
        )


def _suspicious(auprc: Interval, prevalence: float) -> tuple[str, ...]:
    """Return a flag if the AUPRC, or the lower end of its interval, is suspiciously high."""
    least = auprc.value if auprc.low is None else auprc.low
    if least < TOO_GOOD or prevalence > MAX_PREVALENCE:
        return ()
    why = f"AUPRC {auprc.value:.3g} is suspiciously high; look for a leak"
    return (f"{SUSPICIOUS_SCORE}: {why}",)


def _is_probability(values: Floats) -> bool:
    scores = values[~np.isnan(values)]
    return bool(np.all((scores >= 0.0) & (scores <= 1.0)))


def _dependence_s(judged: Judged) -> float:
    """Return the time within which samples share incidents: the horizon, or the longest one."""
    longest = 0
    if judged.task.kind == "detect":
        longest = max((int(due[-1] - due[0]) for due in due_moments(judged) if len(due)), default=0)
    return max(judged.task.horizon_s, longest * judged.every_s)


class _Counts:
    """Incidents, found incidents, false alarms and scored days, per sample.

    Intervals are exact with few counts, or if one of two counts is 0.
    """

    def __init__(
        self, of: ScoredIncidents, false: Bools, samples: _Samples, judged: Judged
    ) -> None:
        self._few, self._count = len(of.incident) < FEW, len(of.incident)
        self._wording = judged.task.wording
        self._clusters = samples.clusters
        component = judged.incidents.row[of.incident]
        incidents = samples.counted(of.last, component)
        found = samples.counted(of.last[of.found], component[of.found])
        wrong = samples.counted(*np.nonzero(false))
        days: Floats = np.full(len(samples.positive), judged.every_s / 86_400.0)
        self.precision = self._share(found, wrong)
        self.recall = self._share(found, incidents - found)
        self.false_rate = exact_rate(int(wrong.sum()), float(days.sum()))
        if not self._few and wrong.sum() >= FEW:
            self.false_rate = self._clusters.rate(ratio(wrong, days))

    def share(self, estimate: Estimate) -> Interval:
        """Return a share with its interval, or without one if the incidents are too few."""
        return self._none(estimate.value) if self._few else self._clusters.share(estimate)

    def difference(self, own: Estimate, other: Estimate) -> Interval:
        """Return the difference of two average precisions."""
        if self._few:
            return self._none(own.value - other.value)
        return self._clusters.difference(own, other)

    def _none(self, value: float) -> Interval:
        are = "is" if self._count == 1 else "are"
        method = f"none: {self._wording.count(self._count)} {are} fewer than {FEW}"
        return Interval(value=value, method=method)

    def _share(self, these: Floats, others: Floats) -> Interval:
        exact = exact_share(int(these.sum()), int(others.sum()))
        if these.sum() < FEW or not others.any():
            return exact
        return self._clusters.share(ratio(these, these + others))
