"""Predict failures from metrics that deviate from a worker's usual values at the time of day."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np

from torchloom_core.lab.learning import (
    FitSize,
    MeasuredSteps,
    SeasonalProfiles,
    arrays_bytes,
    arrays_part,
    json_part,
    step_means,
)
from torchloom_core.plugin import (
    SECOND_NS,
    Example,
    FleetView,
    Floats,
    Hazard,
    ModelError,
    Need,
    NotNegative,
    PluginError,
    Positive,
    Registry,
    hookimpl,
)

_POWER = 8.0
"""The odds double if the score rises by a tenth."""

_CARD, _ARRAYS = "seasonal_residual.json", "seasonal_residual.safetensors"


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's fields other than arrays: metrics are their columns, workers their rows.

    One more row, the last, is for unknown workers. ``seasons_s`` are the learned seasons.
    """

    metrics: tuple[str, ...]
    workers: tuple[str, ...]
    seasons_s: tuple[Positive, ...]
    rare_score: Positive


class SeasonalResidualPredictor:
    """Compare each metric with its level and seasonal profile, and combine the deviations.

    Metrics are averaged over ``step_s``. With z the deviation from the usual value of
    :class:`~torchloom_core.lab.learning.seasonal_profiles.SeasonalProfiles`, in spreads,

        z = z now - median of z over the ``follow_s`` before
        score = sqrt(mean over metrics of min(|z|, cap)^2), or the largest min(|z|, cap)
        odds = (score / rare score)^8

    with the rare score, at least 1, which a share ``rare`` of the training samples exceeds. The
    first line adapts to permanent changes of the level, and to an anomaly that lasts for half of
    ``follow_s``. It learns without failures, so this is no probability until ``torchloom fit``
    calibrates it.
    """

    name = "seasonal_residual"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.seasonal_residual]``."""

        metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = (
            "gpu_temp_celsius",
            "gpu_power_watts",
        )
        seasons_s: tuple[Positive, ...] = (86_400.0,)
        """Lengths of the seasons, seconds; a week needs several weeks of examples."""
        step_s: Positive = 900.0
        """Averaging time of metrics, seconds, which is also the length of a phase."""
        follow_s: NotNegative = 0.0
        """Time over which the level adapts, seconds; 0 for the learned level."""
        cap: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 10.0
        """Limit of a metric's deviation, in spreads."""
        combine: Literal["mean", "max"] = "mean"
        """Root mean square over all metrics, or the largest deviation."""
        rare: Annotated[float, msgspec.Meta(gt=0, lt=0.5)] = 0.01
        """The share of worker moments whose probability is above 1/2."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 300.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._learned: Learned | None = None
        self._profiles = SeasonalProfiles((), np.empty((0, 0)), np.empty((0, 0)), ())
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self._followed = round(options.follow_s / options.step_s)
        window_s = (1 + self._followed) * options.step_s
        self.needs = tuple(Need(metric, window_s) for metric in options.metrics)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and without a sample."""
        learned = self._learned
        if learned is None:
            return Hazard(probability=np.full(len(view), np.nan))
        row_of = {worker: row for row, worker in enumerate(learned.workers)}
        rows = [row_of.get(worker, -1) for worker in view.workers]
        *before, measured = self._measured(view, 1 + self._followed)
        step_ns = round(self._options.step_s * SECOND_NS)
        past = [
            self._profiles.spreads_off(values, rows, view.now_ns - steps * step_ns)
            for steps, values in zip(range(len(before), 0, -1), before, strict=True)
        ]
        moved = _level(np.reshape(past, (len(past), *measured.shape)))
        z = self._profiles.spreads_off(measured, rows, view.now_ns) - moved
        odds = (_score(z, self._options) / learned.rare_score) ** _POWER
        probability = odds / (1 + odds)
        usual = self._profiles.usual(view.now_ns)[rows] + moved * self._profiles.spread[rows]
        why = {
            row: self._explain(z[row], measured[row], usual[row])
            for row in np.flatnonzero(probability > 0.5).tolist()
        }
        return Hazard(probability=probability, why=why)

    def _measured(self, view: FleetView, steps: int) -> Floats:
        """Return ``(steps, workers, metrics)`` means over the last steps, NaN without samples."""
        window_s = steps * self._options.step_s
        windows = [view.window(need.metric, window_s) for need in self.needs]
        return np.stack([step_means(window, steps).T for window in windows], axis=-1)

    def _explain(self, z: Floats, measured: Floats, usual: Floats) -> str:
        """Return a sentence on the metric with the largest deviation."""
        column = int(np.nanargmax(np.abs(z)))
        return (
            f"{self._options.metrics[column]} was {measured[column]:.6g}, {abs(z[column]):.3g} "
            f"times its spread from the {usual[column]:.6g} that is usual at this time"
        )

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn the usual values from moments that no failure followed.

        A step is the time between examples, or ``step_s`` if that is longer.
        """
        past, workers, start_ns, step_s = self._gathered(examples)
        if not len(past):
            raise PluginError(
                f"{self.name}: need a sample of {' or '.join(self._options.metrics)} to learn "
                "from, was none"
            )
        profiles = SeasonalProfiles.learn(past, start_ns, step_s, self._options.seasons_s)
        scores = np.concatenate(
            [
                self._scores(past.table(first, end), range(first, end), profiles, start_ns, step_s)
                for first, end in past.blocks()
            ]
        )
        self._profiles = profiles
        self._learned = Learned(
            metrics=self._options.metrics,
            workers=workers,
            seasons_s=profiles.seasons_s,
            rare_score=max(1.0, float(np.quantile(scores, 1 - self._options.rare))),
        )

    def learning_bytes(self, size: FitSize) -> int:
        """Return the most memory that learning takes, bytes; it grows with the values."""
        metrics = len(self.needs)
        step_s = max(self._options.step_s, self.every_s, size.every_s)
        rows = min(size.values, size.components * size.moments)
        steps = size.moments * size.every_s / step_s
        phases = (round(season_s / step_s) for season_s in self._options.seasons_s)
        arrays = 3 + sum(n for n in phases if 2 <= n < steps / 2)
        per_row = 2 * metrics + 7  # its values twice, its position, and its score
        numbers = rows * per_row + 4 * arrays * size.components * metrics
        return 8 * numbers + 8 * MeasuredSteps.TABLE_BYTES

    def _gathered(
        self, examples: Iterable[Example]
    ) -> tuple[MeasuredSteps, tuple[str, ...], int, float]:
        """Return the samples, the workers, the start time, and the length of a step, seconds."""
        past = MeasuredSteps(len(self.needs))
        workers: tuple[str, ...] = ()
        step_s = max(self._options.step_s, self.every_s)
        start_ns = last_ns = 0
        last = -1
        for example in examples:
            view = example.view
            start_ns = start_ns or view.now_ns
            if last_ns and last == 0:
                step_s = max(step_s, (view.now_ns - last_ns) / SECOND_NS)
            last_ns = view.now_ns
            step = (view.now_ns - start_ns) // round(step_s * SECOND_NS)
            if step > last:
                measured = self._measured(view, 1)[0]
                measured[example.outcome == 1.0] = np.nan
                past.add(step, measured)
                workers, last = tuple(view.workers), step
        return past, workers, start_ns, step_s

    def _scores(
        self,
        past: Floats,
        rows: range,
        profiles: SeasonalProfiles,
        start_ns: int,
        step_s: float,
    ) -> Floats:
        """Return the known scores of some workers' past."""
        step_ns = round(step_s * SECOND_NS)
        followed = round(self._options.follow_s / step_s)
        z = np.stack(
            [
                profiles.spreads_off(values, rows, start_ns + step * step_ns)
                for step, values in enumerate(past)
            ]
        )
        if followed:
            moved = [_level(z[max(0, step - followed) : step]) for step in range(len(z))]
            z = z - np.stack(moved)
        scores = _score(z, self._options)
        return scores[~np.isnan(scores)]

    def parts(self) -> Mapping[str, bytes]:
        """Return arrays as safetensors, and the rest as JSON."""
        usual = self._profiles
        profiles = {f"profile_{i}": profile for i, profile in enumerate(usual.profiles)}
        return {
            _CARD: msgspec.json.encode(self._learned),
            _ARRAYS: arrays_bytes({"level": usual.level, "spread": usual.spread, **profiles}),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the parts; ModelError if one is damaged, or has other metrics."""
        learned = json_part(parts, _CARD, Learned)
        if learned.metrics != self._options.metrics:
            raise ModelError(
                f"{_CARD}: need the options' metrics {', '.join(self._options.metrics)}, was "
                f"{', '.join(learned.metrics)}"
            )
        shape = (len(learned.workers) + 1, len(learned.metrics))
        shapes: dict[str, tuple[int | None, ...]] = {"level": shape, "spread": shape}
        shapes |= {f"profile_{i}": (None, *shape) for i in range(len(learned.seasons_s))}
        level, spread, *profiles = arrays_part(parts, _ARRAYS, shapes)
        self._profiles = SeasonalProfiles(learned.seasons_s, level, spread, tuple(profiles))
        self._learned = learned


def _level(past: Floats) -> Floats:
    """Return the median over the first axis, 0 without values."""
    known = ~np.isnan(past).all(axis=0)
    level = np.zeros(past.shape[1:])
    level[known] = np.nanmedian(past[:, known], axis=0)
    return level


def _score(z: Floats, options: SeasonalResidualPredictor.Options) -> Floats:
    """Return the combined score over the last axis, NaN without values."""
    known = ~np.isnan(z)
    off = np.where(known, np.minimum(np.abs(z), options.cap), 0.0)
    if options.combine == "max":
        return np.where(known.any(axis=-1), off.max(axis=-1), np.nan)
    with np.errstate(invalid="ignore"):
        score: Floats = np.sqrt((off**2).sum(axis=-1) / known.sum(axis=-1))
    return score


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(SeasonalResidualPredictor)
