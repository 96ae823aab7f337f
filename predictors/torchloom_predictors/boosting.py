"""Learn from telemetry and fault history which workers fail soon, with boosted trees."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from torchloom_core.errors import ModelError
from torchloom_core.features import Features
from torchloom_core.learning import (
    Rows,
    RowSample,
    estimator_bytes,
    estimator_part,
    json_part,
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

_LATER = 0.2
"""The last share of the examples' time, on which the number of trees is chosen."""

_PATIENCE = 20
"""So many trees without a better likelihood there end the search."""

_TREES_UNTRIED = 50
"""How many trees where one part or the other has no failure to choose the number by."""

_EXPLAINED = 50
"""So many workers, those most at risk, are given a reason."""

_TRUSTED = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)
_TREES, _CARD = "boosting.skops", "boosting.json"


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was learned beside the trees.

    Attributes
    ----------
    features : tuple of str
        Names of the columns that the trees know.
    share : float
        How many of the healthy rows they were shown.
    prior : float
        How many of all rows failed.
    usual : tuple of (float or None)
        Median of each feature over healthy rows, None where it is mostly unknown.
    """

    features: tuple[str, ...]
    share: float
    prior: float
    usual: tuple[float | None, ...]


class BoostingPredictor:
    """Boost decision trees on the features of every worker.

    Histogram-based gradient boosting (Ke et al., "LightGBM", NeurIPS 2017; scikit-learn's
    HistGradientBoostingClassifier), which takes unknown values as they are. The number of trees
    is the one with the best likelihood on the last fifth of the examples' time, a horizon after
    the rest; then the trees are grown again on everything.

    Of workers that did not fail only a sample is kept, of share s. The trees' odds are too high
    by 1/s then, so log s is added to the log odds (King and Zeng, "Logistic Regression in Rare
    Events Data", 2001, section 4.1).
    """

    name = "boosting"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.boosting]``.

        Attributes
        ----------
        metrics : tuple of str
            What is looked at; none: the history of faults only.
        spans_s : tuple of float
            Over how long each metric is summed up, seconds.
        half_lives_s : tuple of float
            Ages at which a fault counts half, seconds; none: no history of faults.
        incident_s : float
            Faults on one node closer together than this are one incident, seconds.
        max_healthy : int
            How many moments of workers that did not fail are kept to learn from.
        learning_rate : float
            How much each tree adds.
        max_trees : int
            The most trees that are tried.
        max_leaves : int
            Leaves a tree.
        min_leaf_rows : int
            Rows a leaf.
        l2 : float
            Ridge penalty on a leaf's log odds.
        seed : int
            Of the sample.
        horizon_s : float
            How far ahead the probability looks, seconds.
        every_s : float
            How often to forecast, seconds.
        """

        metrics: tuple[str, ...] = ()
        spans_s: tuple[Positive, ...] = (600.0, 3600.0)
        half_lives_s: tuple[Positive, ...] = (86_400.0, 864_000.0, 2_592_000.0)
        incident_s: NotNegative = 60.0
        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 100_000
        learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
        max_trees: Annotated[int, msgspec.Meta(ge=1)] = 400
        max_leaves: Annotated[int, msgspec.Meta(ge=2)] = 15
        min_leaf_rows: Annotated[int, msgspec.Meta(ge=1)] = 20
        l2: NotNegative = 1.0
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._features = Features(
            metrics=options.metrics,
            spans_s=options.spans_s,
            half_lives_s=options.half_lives_s,
            incident_s=options.incident_s,
        )
        self._trees: Any = None
        self._learned = Learned(features=(), share=1.0, prior=0.0, usual=())
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = self._features.needs
        self.fault_memory_s = self._features.fault_memory_s

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and for who left or is gone."""
        probability = np.full(len(view), np.nan)
        rows = np.flatnonzero(~view.is_in("left", "gone"))
        if self._trees is None or not len(rows):
            return Hazard(probability=probability)
        features = self._features.compute(view)[rows]
        probability[rows] = self._judge(features)
        order = np.argsort(-probability[rows], kind="stable")[:_EXPLAINED]
        suspects = order[probability[rows[order]] > self._learned.prior]
        reasons = self._explain(features[suspects])
        return Hazard(
            probability=probability, why=dict(zip(rows[suspects].tolist(), reasons, strict=True))
        )

    def _judge(self, features: Floats) -> Floats:
        """Return ``(rows,)`` probabilities."""
        from threadpoolctl import threadpool_limits

        with threadpool_limits(limits=1):  # a thread more waits longer than it works
            log_odds = self._trees.decision_function(features) + math.log(self._learned.share)
        probability: Floats = 0.5 * (1 + np.tanh(log_odds / 2))
        return probability

    def _explain(self, features: Floats) -> list[str]:
        """Return for each row the feature without whose value it would be judged best."""
        rows, columns = features.shape
        if not rows:
            return []
        usual = np.array(self._learned.usual, dtype=float)
        otherwise = np.repeat(features[:, None, :], columns, axis=1)
        every = np.arange(columns)
        otherwise[:, every, every] = usual
        judged = self._judge(otherwise.reshape(-1, columns)).reshape(rows, columns)
        names = self._learned.features
        return [
            f"{names[column]} is {_number(features[row, column])}, usual is "
            f"{_number(usual[column])}: with that it would be {judged[row, column]:.2g}"
            for row, column in enumerate(judged.argmin(axis=1).tolist())
        ]

    def fit(self, examples: Iterable[Example]) -> None:
        """Grow the trees; a worker that left or is gone at the time is nothing to learn from."""
        sample = RowSample(self._options.max_healthy, self._options.seed)
        for example in examples:
            view = example.view
            outcome = np.where(view.is_in("left", "gone"), np.nan, example.outcome)
            sample.add(view.now_ns, self._features.compute(view), outcome)
        rows = sample.rows(self.name)
        failed = float(rows.failed.sum())
        healthy = rows.features[~rows.failed]
        self._trees = self._grow(rows, self._best_number(rows))
        self._learned = Learned(
            features=self._features.names,
            share=rows.share,
            prior=failed / (failed + len(healthy) / rows.share),
            usual=tuple(None if math.isnan(m) else m for m in _medians(healthy).tolist()),
        )

    def _best_number(self, rows: Rows) -> int:
        """Return the number of trees that is best on the later part."""
        earlier, later = rows.split(_LATER, self.horizon_s)
        if not all(0 < part.failed.sum() < len(part.failed) for part in (earlier, later)):
            return min(_TREES_UNTRIED, self._options.max_trees)
        return int(self._grow(earlier, self._options.max_trees, later).n_iter_)

    def _grow(self, rows: Rows, trees: int, later: Rows | None = None) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        options = self._options
        grower = HistGradientBoostingClassifier(
            learning_rate=options.learning_rate,
            max_iter=trees,
            max_leaf_nodes=options.max_leaves,
            min_samples_leaf=options.min_leaf_rows,
            l2_regularization=options.l2,
            early_stopping=later is not None,
            n_iter_no_change=_PATIENCE,
            random_state=options.seed,
        )
        check = {} if later is None else {"X_val": later.features, "y_val": later.failed}
        with threadpool_limits(limits=1):  # sums in another order are other trees
            return grower.fit(_with_something_known(rows.features), rows.failed, **check)

    def parts(self) -> Mapping[str, bytes]:
        """Return the trees as skops keeps them, and what goes with them as JSON."""
        return {
            _TREES: estimator_bytes(self._trees),
            _CARD: msgspec.json.encode(self._learned),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Become what :meth:`parts` was taken from.

        Raises
        ------
        ModelError
            If a part is missing or damaged, or was learned from other features.
        """
        learned = json_part(parts, _CARD, Learned)
        if learned.features != self._features.names:
            raise ModelError(
                f"{_CARD}: need the {len(self._features.names)} features that the options ask "
                f"for, was {len(learned.features)} of other options"
            )
        trees = estimator_part(parts, _TREES, _TRUSTED)
        _check_trees(trees, len(learned.features))
        self._trees, self._learned = trees, learned


def _check_trees(estimator: Any, columns: int) -> None:
    """Refuse trees that point outside themselves: they are followed without a look."""
    for (tree,) in estimator._predictors:
        nodes = tree.nodes
        inner = nodes[nodes["is_leaf"] == 0]
        children = np.concatenate([inner["left"], inner["right"]])
        own = np.tile(np.flatnonzero(nodes["is_leaf"] == 0), 2)
        if (
            not (len(nodes) and (children > own).all() and (children < len(nodes)).all())
            or not (inner["feature_idx"] < columns).all()
        ):
            raise ModelError(f"{_TREES}: need trees whose nodes are in them, was not")


def _with_something_known(features: Floats) -> Floats:
    """Return the features, 0 in columns that nobody knows: scikit-learn finds no bins there."""
    return np.where(np.isnan(features).all(axis=0), 0.0, features)


def _medians(features: Floats) -> Floats:
    """Return each column's median, NaN where most rows do not know it."""
    medians = np.full(features.shape[1], np.nan)
    known = np.count_nonzero(~np.isnan(features), axis=0) > len(features) / 2
    if known.any():
        medians[known] = np.nanmedian(features[:, known], axis=0)
    return medians


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(BoostingPredictor)
