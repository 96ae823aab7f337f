"""Predict failures from anomalies in a worker's telemetry, over all features together."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import (
    Features,
    FitSize,
    RowSample,
    Scale,
    arrays_bytes,
    arrays_part,
    check_forest,
    estimator_bytes,
    estimator_part,
    json_part,
    part_of,
)
from torchloom_core.plugin import (
    Example,
    FleetView,
    Floats,
    Hazard,
    ModelError,
    Positive,
    Registry,
    hookimpl,
)

_POWER = 8.0
"""The odds double if the score rises by a tenth."""

_FAR = 10.0
"""Values are clipped at this many spreads from the median."""

_LEAST_SCORE = 1e-6

_CARD, _ARRAYS, _FOREST = "anomaly.json", "anomaly.safetensors", "anomaly.skops"
_NUMBERS = ("middle", "spread", "mean", "components")
_TRUSTED = ("sklearn.tree._tree.Tree",)


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's fields other than arrays: ``features`` are the names of the columns."""

    method: Literal["pca", "forest"]
    features: tuple[str, ...]
    rare_score: Positive


class AnomalyPredictor:
    """Score the distance of a worker's features from those of all workers in the past.

    Features are scaled to spreads from their median, unknown ones are set to the median, and
    ``method`` selects the score:

    - ``pca``: the root mean square of the residual from the principal components that explain
      ``explained`` of the variance (Jackson and Mudholkar, "Control Procedures for Residuals
      Associated with Principal Component Analysis", Technometrics 21, 1979);
    - ``forest``: the isolation score 2^(-mean depth / expected depth) (Liu, Ting and Zhou,
      "Isolation Forest", ICDM 2008).

    With the rare score, which a share ``rare`` of the training rows exceeds,

        odds = (score / rare score)^8

    It learns without failures, so this is no probability until ``torchloom fit`` calibrates it.
    """

    name = "anomaly"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.anomaly]``."""

        method: Literal["pca", "forest"] = "pca"
        metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = (
            "gpu_temp_celsius",
            "gpu_power_watts",
        )
        spans_s: tuple[Positive, ...] = (900.0, 3600.0)
        """Spans over which each metric is aggregated, seconds."""
        max_rows: Annotated[int, msgspec.Meta(ge=100)] = 50_000
        """Most moments of workers to learn from."""
        explained: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9
        """Share of the variance that the components explain."""
        trees: Annotated[int, msgspec.Meta(ge=1)] = 100
        rare: Annotated[float, msgspec.Meta(gt=0, lt=0.5)] = 0.01
        """The share of worker moments whose probability is above 1/2."""
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0
        """Of the sample and of the forest."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 300.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._features = Features(metrics=options.metrics, spans_s=options.spans_s, past=False)
        self._learned: Learned | None = None
        self._scale = Scale(np.empty(0), np.empty(0))
        self._mean, self._components = np.empty(0), np.empty((0, 0))
        self._forest: Any = None
        self._forest_bytes = b""
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = self._features.needs

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and without a sample."""
        probability = np.full(len(view), np.nan)
        features = self._features.compute(view)
        rows = np.flatnonzero(_measured(features))
        if self._learned is None or not len(rows):
            return Hazard(probability=probability)
        z = self._scaled(features[rows])
        odds = (self._score(z) / self._learned.rare_score) ** _POWER
        probability[rows] = odds / (1 + odds)
        unusual = np.flatnonzero(odds > 1).tolist()
        why = {int(rows[i]): self._explain(features[rows[i]], z[i]) for i in unusual}
        return Hazard(probability=probability, why=why)

    def _scaled(self, features: Floats) -> Floats:
        """Return the features in spreads from the median, 0 where unknown."""
        z = self._scale.spreads_off(features)
        return np.where(np.isnan(z), 0.0, z).clip(-_FAR, _FAR)

    def _score(self, z: Floats) -> Floats:
        """Return ``(rows,)`` scores, higher for more unusual rows."""
        if self._options.method == "forest":
            scores: Floats = -self._forest.score_samples(z)
            return scores
        off = z - self._mean
        off -= off @ self._components.T @ self._components
        score: Floats = np.sqrt((off**2).mean(axis=1))
        return score

    def _explain(self, features: Floats, z: Floats) -> str:
        """Return a sentence on the feature furthest from its median."""
        column = int(np.abs(z).argmax())
        away = "or more " if abs(z[column]) == _FAR else ""
        return (
            f"{self._features.names[column]} was {features[column]:.6g}, "
            f"{abs(z[column]):.3g} {away}times its spread from the usual "
            f"{self._scale.middle[column]:.6g}"
        )

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn from the moments that no failure followed."""
        options = self._options
        sample = RowSample(options.max_rows, options.seed)
        for example in examples:
            features = self._features.compute(example.view)
            usual = _measured(features) & (example.outcome != 1.0)
            sample.add(example.view.now_ns, features, np.where(usual, 0.0, np.nan))
        rows = sample.healthy(self.name)
        self._scale = Scale.of(rows)
        z = self._scaled(rows)
        self._mean, self._components = z.mean(axis=0), np.empty((0, z.shape[1]))
        if options.method == "forest":
            self._grow_forest(z)
        else:
            self._find_components(z)
        rare = float(np.quantile(self._score(z), 1 - options.rare))
        self._learned = Learned(
            method=options.method,
            features=self._features.names,
            rare_score=max(rare, _LEAST_SCORE),
        )

    def learning_bytes(self, size: FitSize) -> int:
        """Return the most memory that learning takes, bytes."""
        return size.sample_bytes(self._options.max_rows, len(self._features.names))

    def _grow_forest(self, z: Floats) -> None:
        from sklearn.ensemble import IsolationForest

        options = self._options
        self._forest = IsolationForest(n_estimators=options.trees, random_state=options.seed)
        self._forest.fit(z)
        self._forest_bytes = estimator_bytes(self._forest)

    def _find_components(self, z: Floats) -> None:
        from sklearn.decomposition import PCA
        from threadpoolctl import threadpool_limits

        if (z != self._mean).any():
            with threadpool_limits(limits=1):  # another order of sums would give other components
                pca = PCA(n_components=self._options.explained, svd_solver="full").fit(z)
            self._components = np.ascontiguousarray(pca.components_)

    def parts(self) -> Mapping[str, bytes]:
        """Return arrays as safetensors, a forest as skops, and the rest as JSON."""
        numbers = (self._scale.middle, self._scale.spread, self._mean, self._components)
        parts = {
            _CARD: msgspec.json.encode(self._learned),
            _ARRAYS: arrays_bytes(dict(zip(_NUMBERS, numbers, strict=True))),
        }
        return parts | ({_FOREST: self._forest_bytes} if self._forest else {})

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the parts; ModelError if one is damaged, or fitted with other options."""
        learned = json_part(parts, _CARD, Learned)
        if learned.method != self._options.method:
            raise ModelError(
                f"{_CARD}: need method {self._options.method} of the options, was {learned.method}"
            )
        self._features.refuse_others(learned.features, _CARD)
        columns = len(learned.features)
        shapes = dict.fromkeys(("middle", "spread", "mean"), (columns,))
        arrays = arrays_part(parts, _ARRAYS, {**shapes, "components": (None, columns)})
        if learned.method == "forest":
            self._forest_bytes = part_of(parts, _FOREST)
            self._forest = estimator_part(parts, _FOREST, _TRUSTED)
            check_forest(self._forest, columns, _FOREST)
        middle, spread, self._mean, self._components = arrays
        self._scale = Scale(middle, spread)
        self._learned = learned


def _measured(features: Floats) -> NDArray[np.bool_]:
    """Return ``(workers,)``: whether any feature but the heartbeat age is known."""
    return np.asarray(np.isfinite(features[:, 1:]).any(axis=1))


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(AnomalyPredictor)
