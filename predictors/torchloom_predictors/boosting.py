"""Predict failures from telemetry and fault history with boosted trees."""

from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from torchloom_core.lab.learning import RowLearner, RowOptions, Rows, fill_unknown_columns
from torchloom_core.plugin import ConfigError, Floats, ModelError, NotNegative, Registry, hookimpl
from torchloom_predictors.lightgbm_trees import LightGBMTrees

_LATER = 0.2
"""The last share of the training time, on which the number of trees is chosen."""

_PATIENCE = 20
"""Trees without a better likelihood there after which growth stops."""

_TREES_UNTRIED = 50
"""Number of trees if one of the two parts has no failure."""


class BoostingPredictor(RowLearner):
    """Boost decision trees on the features of every worker.

    Histogram-based gradient boosting (Ke et al., "LightGBM", NeurIPS 2017; by scikit-learn's
    HistGradientBoostingClassifier or by LightGBM itself), which handles missing values. Trees are
    added until 20 in a row have not improved the likelihood on the last fifth of the training time,
    a horizon after the rest; then as many, with those 20, are grown on all rows.
    """

    name = "boosting"
    variants: ClassVar = (
        {"max_leaves": 8, "l2": 10.0},
        {"max_leaves": 8, "l2": 10.0, "seasons_s": [86_400.0, 604_800.0]},
    )
    trusted: ClassVar = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.boosting]``, besides those of RowOptions."""

        library: Literal["scikit-learn", "lightgbm"] = "scikit-learn"
        """Library for the trees; LightGBM needs the extra ``lightgbm``."""
        learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
        """Weight of each tree."""
        max_trees: Annotated[int, msgspec.Meta(ge=1)] = 400
        max_leaves: Annotated[int, msgspec.Meta(ge=2)] = 15
        min_leaf_rows: Annotated[int, msgspec.Meta(ge=1)] = 20
        """Most trees, most leaves per tree, least rows per leaf."""
        l2: NotNegative = 1.0
        """Ridge penalty on a leaf's log odds."""

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._with_lightgbm = options.library == "lightgbm"
        if self._with_lightgbm:
            try:
                import_module("lightgbm")
            except (ImportError, OSError) as error:  # OSError: a library of the system is missing
                raise ConfigError(
                    f"predictors.{self.name}.library: need the extra lightgbm, "
                    f"pip install 'torchloom[lightgbm]': {error}"
                ) from None

    @property
    def part(self) -> str:
        """Name of the part with the trees."""
        return f"{self.name}.txt" if self._with_lightgbm else super().part

    def grow(self, rows: Rows) -> Any:
        """Grow the number of trees that early stopping on the later part finds."""
        return self._boost(rows, self._number(rows))

    def grow_again(self, trees: Any, rows: Rows) -> Any:
        """Grow as many trees on more rows, as choosing the number takes most of the time."""
        return self._boost(rows, trees.n_iter_)

    def _number(self, rows: Rows) -> int:
        """Return the number of trees by early stopping on the later part."""
        earlier, later = rows.split(_LATER, self.horizon_s)
        if not (earlier.has_both_outcomes and later.has_both_outcomes):
            return min(_TREES_UNTRIED, self.options.max_trees)
        return int(self._boost(earlier, self.options.max_trees, later).n_iter_)

    def _boost(self, rows: Rows, trees: int, later: Rows | None = None) -> Any:
        options = self.options
        if self._with_lightgbm:
            return LightGBMTrees.grow(
                rows,
                trees,
                later,
                _PATIENCE,
                learning_rate=options.learning_rate,
                num_leaves=options.max_leaves,
                min_data_in_leaf=options.min_leaf_rows,
                lambda_l2=options.l2,
                seed=options.seed,
            )
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

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
        with threadpool_limits(limits=1):  # the work is too small for more threads
            return grower.fit(fill_unknown_columns(rows.features), rows.failed, **check)

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` sums over all trees."""
        log_odds: Floats = trees.decision_function(features)
        return log_odds

    def to_bytes(self, trees: Any) -> bytes:
        """Serialise the trees with skops, or as LightGBM's text."""
        return trees.text.encode() if self._with_lightgbm else super().to_bytes(trees)

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the trees that :meth:`to_bytes` serialised, or raise a ModelError."""
        if self._with_lightgbm:
            return LightGBMTrees.restore(data, columns, self.part)
        return super().from_bytes(data, columns)

    def check(self, trees: Any, columns: int) -> None:
        """Refuse trees with indices out of range, which scikit-learn does not check."""
        for (tree,) in trees._predictors:
            nodes = tree.nodes
            inner = nodes[nodes["is_leaf"] == 0]
            children = np.concatenate([inner["left"], inner["right"]])
            own = np.tile(np.flatnonzero(nodes["is_leaf"] == 0), 2)
            inside = len(nodes) and (children > own).all() and (children < len(nodes)).all()
            in_range = (inner["feature_idx"] >= 0) & (inner["feature_idx"] < columns)
            # Categorical splits are never learned, and would read a bit set that does not exist.
            if not (inside and in_range.all()) or inner["is_categorical"].any():
                raise ModelError(f"{self.name}.skops: need node and feature indices in range")


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(BoostingPredictor)
