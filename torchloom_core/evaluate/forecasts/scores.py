"""How good forecasts were: over moments, by incident, and against other forecasts.

Everything is by incident and by node-day; F1 with point adjustment, which a random score does
well by (Kim et al., "Towards a rigorous evaluation of time-series anomaly detection", AAAI
2022), is nowhere computed.
"""

from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from torchloom_core.evaluate.forecasts.alarms import (
    Bools,
    Judged,
    Told,
    due_moments,
    leads_s,
    told,
)
from torchloom_core.evaluate.forecasts.chance import found_by_chance
from torchloom_core.evaluate.forecasts.intervals import (
    Clusters,
    Estimate,
    average_precision,
    exact_rate,
    exact_share,
    ratio,
)
from torchloom_core.evaluate.forecasts.leaks import suspicious_score
from torchloom_core.learning.forecast_score import (
    FEW,
    CalibrationBin,
    ForecastScore,
    Interval,
    PrPoint,
)
from torchloom_core.learning.ranking import precision_and_recall
from torchloom_core.plugin.arrays import Floats, Ints

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
    """Return the whole score of one predictor.

    Parameters
    ----------
    threshold_from : str
        What the threshold was set on.
    others : mapping of str to (times, components) float64
        Scores of other predictors at the same moments, to compare with.
    alarms : (times, components) bool, optional
        Where it alarmed; absent: where its score is at or above the threshold.
    allowed_per_node_day : float, optional
        False alarms that the threshold was set to keep to; absent where it was given.

    Returns
    -------
    ForecastScore
        Intervals are those of :class:`Clusters`; with fewer than 20 incidents there are only
        exact ones of counts. An AUPRC that is too good to be true adds a flag.
    """
    samples = _Samples(judged)
    alarms = judged.alarms(threshold) if alarms is None else alarms
    of = told(judged, alarms)
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
        flags=flags + suspicious_score(auprc, prevalence) + samples.flags(judged.score),
    )


def auprc_of(judged: Judged) -> Estimate:
    """Return the AUPRC of the judged moments, 0 without a positive one."""
    return _Samples(judged).average_precision(judged.score)


def samples_of(judged: Judged) -> tuple[Floats, Bools]:
    """Return the judged moments: their scores, -inf where nothing was said, and outcomes.

    Returns
    -------
    (samples,) float64, (samples,) bool
    """
    samples = _Samples(judged)
    return samples.ranked(judged.score), samples.positive


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


class _Samples:
    """The judged moments of all components, one after the other.

    Attributes
    ----------
    times_ns : (times,) int64
        From the first that is judged to the last; all, if none is.
    positive : (samples,) bool
        Whether an incident followed.
    """

    def __init__(self, judged: Judged) -> None:
        self._known: Bools = ~np.isnan(judged.outcome)
        at = np.flatnonzero(self._known.any(axis=1))
        seen = slice(at[0], at[-1] + 1) if len(at) else slice(None)
        self.times_ns: Ints = judged.times_ns[seen]
        self._seen, self._alike_s = seen, _alike_s(judged)
        self.positive = judged.outcome[self._known] == 1.0

    @cached_property
    def clusters(self) -> Clusters:
        """Which samples are alike."""
        return Clusters(self.times_ns, self._known[self._seen], self._alike_s)

    def average_precision(self, score: Floats) -> Estimate:
        return average_precision(self.ranked(score), self.positive)

    def counted(self, time: Ints, component: Ints) -> Floats:
        """Return how many of some things are at each sample, of when and where they are."""
        counts: Floats = np.zeros(self._known.shape)
        np.add.at(counts, (time, component), 1.0)
        return counts[self._known]

    def ranked(self, score: Floats) -> Floats:
        """Return the samples' scores; without one a sample ranks below all others."""
        known = score[self._known]
        return np.where(np.isnan(known), -np.inf, known)

    def _said(self, score: Floats) -> tuple[Floats, Floats]:
        """Return what was said, sorted, and what came of it, where something was said."""
        known = score[self._known]
        said = ~np.isnan(known)
        order = np.argsort(known[said], kind="stable")
        return known[said][order], self.positive[said][order].astype(np.float64)

    def flags(self, score: Floats) -> tuple[str, ...]:
        known = score[self._known]
        unjudged = bool(len(known)) and float(np.isnan(known).mean()) > _UNJUDGED_SHARE
        improbable = not _is_probability(known)
        return (PARTLY_UNJUDGED,) * unjudged + (NOT_A_PROBABILITY,) * improbable

    def brier(self, score: Floats) -> float:
        said, came = self._said(score)
        if not len(said) or not _is_probability(said):
            return 0.0
        return float(np.mean((said - came) ** 2))

    def calibration(self, score: Floats) -> tuple[CalibrationBin, ...]:
        """Return bins of about as many samples each."""
        said, came = self._said(score)
        if not _is_probability(said):
            return ()
        return tuple(
            CalibrationBin(
                forecast=float(said[part].mean()),
                observed=float(came[part].mean()),
                samples=len(part),
            )
            for part in np.array_split(np.arange(len(said)), _BINS)
            if len(part)
        )

    def curve(self, score: Floats) -> tuple[PrPoint, ...]:
        """Return precision and recall at no more than 200 thresholds, from high to low."""
        ranked = self.ranked(score)
        said = np.isfinite(ranked)
        total = int(self.positive.sum())
        if not self.positive[said].any():
            return ()
        precision, recall, threshold = precision_and_recall(ranked[said], self.positive[said])
        recall = recall * (self.positive[said].sum() / total)
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


def _is_probability(values: Floats) -> bool:
    said = values[~np.isnan(values)]
    return bool(np.all((said >= 0.0) & (said <= 1.0)))


def _alike_s(judged: Judged) -> float:
    """Return how far apart moments have the same incident in common, seconds.

    In a forecast that is the horizon, in a detection the longest incident, if it is longer.
    """
    longest = 0
    if judged.task.kind == "detect":
        longest = max((int(due[-1] - due[0]) for due in due_moments(judged) if len(due)), default=0)
    return max(judged.task.horizon_s, longest * judged.every_s)


class _Counts:
    """Incidents, those found, false alarms and judged days, at each sample.

    Attributes
    ----------
    precision, recall, false_rate : Interval
        Exact where there are few counts, and where none pulls another way, as if all were found.
    """

    def __init__(self, of: Told, false: Bools, samples: _Samples, judged: Judged) -> None:
        self._few, self._count = len(of.incident) < FEW, len(of.incident)
        self._told = judged.task.told
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
        """Return the interval of a share, or none where the incidents are too few."""
        return self._none(estimate.value) if self._few else self._clusters.share(estimate)

    def difference(self, own: Estimate, other: Estimate) -> Interval:
        """Return by how much one average precision is above another."""
        if self._few:
            return self._none(own.value - other.value)
        return self._clusters.difference(own, other)

    def _none(self, value: float) -> Interval:
        are = "is" if self._count == 1 else "are"
        method = f"none: {self._told.count(self._count)} {are} fewer than {FEW}"
        return Interval(value=value, method=method)

    def _share(self, these: Floats, others: Floats) -> Interval:
        exact = exact_share(int(these.sum()), int(others.sum()))
        if these.sum() < FEW or not others.any():
            return exact
        return self._clusters.share(ratio(these, these + others))
