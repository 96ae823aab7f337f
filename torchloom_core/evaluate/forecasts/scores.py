"""How good forecasts were: over moments, by incident, and against other forecasts.

Everything is by incident and by node-day; F1 with point adjustment, which a random score does
well by (Kim et al., "Towards a rigorous evaluation of time-series anomaly detection", AAAI
2022), is nowhere computed.
"""

from collections.abc import Callable, Mapping

import numpy as np

from torchloom_core.evaluate.forecasts.alarms import Bools, Judged, Told, leads_s, told
from torchloom_core.evaluate.forecasts.intervals import (
    RESAMPLES,
    AveragePrecision,
    Blocks,
    blocks_of,
    bootstrap,
    exact_rate,
    exact_share,
)
from torchloom_core.evaluate.forecasts.leaks import suspicious_score
from torchloom_core.learning.forecast_score import (
    FEW,
    CalibrationBin,
    ForecastScore,
    Interval,
    PrPoint,
)
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
    resamples: int = RESAMPLES,
    seed: int = 0,
    flags: tuple[str, ...] = (),
) -> ForecastScore:
    """Return the whole score of one predictor.

    Parameters
    ----------
    threshold_from : str
        What the threshold was set on.
    others : mapping of str to (times, components) float64
        Scores of other predictors at the same moments, to compare with, on the same resamples.
    alarms : (times, components) bool, optional
        Where it alarmed; absent: where its score is at or above the threshold.
    resamples : int
        How many for each bootstrap.

    Returns
    -------
    ForecastScore
        Intervals are bootstrapped by the blocks of :func:`blocks_of`; with fewer than 20
        incidents there are only exact ones of counts. An AUPRC that is too good to be true adds
        a flag.
    """
    samples = _Samples(judged)
    alarms = judged.alarms(threshold) if alarms is None else alarms
    of = told(judged, alarms)
    false = judged.false_alarms(alarms)
    counts = _Counts(of, false, samples, judged)
    weights = samples.blocks.weights(resamples, seed)
    own = samples.average_precision(judged.score)
    auprc = counts.interval(own.value, own, weights)
    versus = {
        name: counts.difference(own, samples.average_precision(other), weights)
        for name, other in (others or {}).items()
    }
    precision, recall = counts.precision(weights), counts.recall(weights)
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
        precision=precision,
        recall=recall,
        f1=_f1(precision.value, recall.value),
        false_alarms_per_node_day=counts.false_rate(weights),
        leads_s=leads_s(judged, of),
        brier=samples.brier(judged.score),
        calibration=samples.calibration(judged.score),
        curve=samples.curve(judged.score),
        versus=versus,
        flags=flags + suspicious_score(auprc, prevalence) + samples.flags(judged.score),
    )


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
    block : (samples,) int64
        What each is resampled with.
    """

    def __init__(self, judged: Judged) -> None:
        self._known = ~np.isnan(judged.outcome)
        at = np.flatnonzero(self._known.any(axis=1))
        seen = slice(at[0], at[-1] + 1) if len(at) else slice(None)
        self.times_ns: Ints = judged.times_ns[seen]
        self.blocks: Blocks = blocks_of(
            self.times_ns, judged.outcome.shape[1], judged.task.horizon_s
        )
        self.positive = judged.outcome[self._known] == 1.0
        self.grid: Ints = np.zeros(judged.outcome.shape, dtype=np.int64)
        self.grid[seen] = self.blocks.of_time[:, None] + self.blocks.of_component[None, :]
        self.block: Ints = self.grid[self._known]

    def average_precision(self, score: Floats) -> AveragePrecision:
        return AveragePrecision(self._ranked(score), self.positive, self.block, self.blocks.count)

    def _ranked(self, score: Floats) -> Floats:
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
        from sklearn.metrics import precision_recall_curve

        ranked = self._ranked(score)
        said = np.isfinite(ranked)
        total = int(self.positive.sum())
        if not total or not self.positive[said].any():
            return ()
        precision, recall, threshold = precision_recall_curve(self.positive[said], ranked[said])
        recall = recall * (self.positive[said].sum() / total)
        levels = np.linspace(recall[0], 0.0, _CURVE_POINTS)
        nearest = np.searchsorted(-recall[:-1], -levels)
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


class _Counts:
    """Incidents, those found, false alarms and judged days, by block of resampling."""

    def __init__(self, of: Told, false: Bools, samples: _Samples, judged: Judged) -> None:
        self._few = len(of.incident) < FEW
        self._what = samples.blocks.what
        size = samples.blocks.count
        block = samples.grid[of.last, judged.incidents.row[of.incident]]
        self._incidents = np.bincount(block, minlength=size).astype(np.float64)
        self._found = np.bincount(block[of.found], minlength=size).astype(np.float64)
        self._false = np.bincount(samples.grid[false], minlength=size).astype(np.float64)
        moments = np.bincount(samples.block, minlength=size)
        self._days: Floats = moments * np.float64(judged.every_s / 86_400.0)

    def interval(
        self, value: float, statistic: Callable[[Floats], Floats], weights: Floats
    ) -> Interval:
        """Return a bootstrapped interval, or none where the incidents are too few."""
        if self._few:
            incidents = int(self._incidents.sum())
            return Interval(value=value, method=f"none: {incidents} failures are fewer than {FEW}")
        return bootstrap(value, statistic, weights, self._what)

    def difference(
        self, own: AveragePrecision, other: AveragePrecision, weights: Floats
    ) -> Interval:
        """Return by how much one average precision is above another, on the same resamples."""

        def above(drawn: Floats) -> Floats:
            return own(drawn) - other(drawn)

        return self.interval(own.value - other.value, above, weights)

    def precision(self, weights: Floats) -> Interval:
        exact = exact_share(int(self._found.sum()), int(self._false.sum()))
        return self._of(exact, self._found, self._found + self._false, weights)

    def recall(self, weights: Floats) -> Interval:
        missed = self._incidents - self._found
        exact = exact_share(int(self._found.sum()), int(missed.sum()))
        return self._of(exact, self._found, self._incidents, weights)

    def false_rate(self, weights: Floats) -> Interval:
        exact = exact_rate(int(self._false.sum()), float(self._days.sum()))
        return self._of(exact, self._false, self._days, weights)

    def _of(self, exact: Interval, above: Floats, below: Floats, weights: Floats) -> Interval:
        """Return the ratio of two counts.

        The interval is exact where there are few of them, and where every resample has the same
        ratio, as if all were found: a bootstrap cannot see beyond what it draws from.
        """
        if self._few or above.sum() < FEW:
            return exact

        def ratio(drawn: Floats) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                values: Floats = (drawn @ above) / (drawn @ below)
            return values

        interval = bootstrap(exact.value, ratio, weights, self._what)
        return exact if interval.low == interval.high else interval
