"""Predict failures from telemetry and fault history with a random forest."""

from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from torchloom_core.lab.learning import (
    RowLearner,
    RowOptions,
    Rows,
    check_forest,
    fill_unknown_columns,
)
from torchloom_core.plugin import Floats, Registry, hookimpl


class ForestPredictor(RowLearner):
    """Average decision trees, each grown on a random sample of the rows and the features.

    A random forest (Breiman, "Random Forests", Machine Learning 45, 2001; scikit-learn's
    RandomForestClassifier), which handles missing values. With few failures it overfits less than
    boosting.
    """

    name = "forest"
    variants: ClassVar = ({"min_leaf_rows": 20}, {"min_leaf_rows": 100})
    trusted: ClassVar = ("sklearn.tree._tree.Tree",)

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.forest]``, besides those of RowOptions."""

        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 50_000
        trees: Annotated[int, msgspec.Meta(ge=1)] = 200
        min_leaf_rows: Annotated[int, msgspec.Meta(ge=1)] = 5
        """Number of trees, and least rows per leaf."""

    options: Options

    def grow(self, rows: Rows) -> Any:
        """Grow all trees on all rows."""
        from sklearn.ensemble import RandomForestClassifier

        options = self.options
        forest = RandomForestClassifier(
            n_estimators=options.trees,
            min_samples_leaf=options.min_leaf_rows,
            random_state=options.seed,
        )
        return forest.fit(fill_unknown_columns(rows.features), rows.failed)

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` log odds of the mean over trees, infinite if all agree."""
        shares = np.zeros((len(features), 2))
        with np.errstate(divide="ignore", over="ignore"):
            rows = features.astype(np.float32)
            for tree in trees.estimators_:  # predict_proba validates the rows for each tree
                shares += tree.tree_.predict(rows)
            sure, failed = (shares / len(trees.estimators_)).T
            log_odds: Floats = np.log(failed) - np.log(sure)
        return log_odds

    def check(self, trees: Any, columns: int) -> None:
        """Refuse trees with indices out of range."""
        check_forest(trees, columns, f"{self.name}.skops")


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(ForestPredictor)
