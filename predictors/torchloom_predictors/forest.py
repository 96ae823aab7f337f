"""Learn from telemetry and fault history which workers fail soon, with a random forest."""

from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from torchloom_core.learning import RowLearner, RowOptions, Rows, check_forest, fill_unknown_columns
from torchloom_core.plugin import Floats, Registry, hookimpl


class ForestPredictor(RowLearner):
    """Average decision trees, each grown on its own draw of the rows and of the features.

    A random forest (Breiman, "Random Forests", Machine Learning 45, 2001; scikit-learn's
    RandomForestClassifier), which takes unknown values as they are. With few failures to learn
    from it holds up where boosting follows single rows.
    """

    name = "forest"
    variants: ClassVar = ({"min_leaf_rows": 20}, {"min_leaf_rows": 100})
    trusted: ClassVar = ("sklearn.tree._tree.Tree",)

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.forest]``.

        Attributes
        ----------
        metrics : tuple of str
            What is looked at; none: the history of faults only.
        spans_s : tuple of float
            Over how long each metric is summed up, seconds.
        attributes : tuple of str
            Numbers that do not change of a component, such as its size.
        groups : tuple of str
            What components have in common beside their rack, such as their model.
        half_lives_s : tuple of float
            Ages at which a fault counts half, seconds; none: no history of faults.
        seasons_s : tuple of float
            Periods, seconds: where in each a moment is; none: it is not looked at.
        incident_s : float
            Faults on one node closer together than this are one incident, seconds.
        max_healthy : int
            How many moments of workers that did not fail are kept to learn from.
        trees : int
            In the forest.
        min_leaf_rows : int
            Rows a leaf.
        seed : int
            Of the sample and of the forest.
        horizon_s : float
            How far ahead the probability looks, seconds.
        every_s : float
            How often to forecast, seconds.
        """

        max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 50_000
        trees: Annotated[int, msgspec.Meta(ge=1)] = 200
        min_leaf_rows: Annotated[int, msgspec.Meta(ge=1)] = 5

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    def grow(self, rows: Rows) -> Any:
        """Grow all trees on everything."""
        from sklearn.ensemble import RandomForestClassifier

        options = self._options
        forest = RandomForestClassifier(
            n_estimators=options.trees,
            min_samples_leaf=options.min_leaf_rows,
            random_state=options.seed,
        )
        return forest.fit(fill_unknown_columns(rows.features), rows.failed)

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` of the mean over the trees; infinite where all are sure."""
        shares = np.zeros((len(features), 2))
        with np.errstate(divide="ignore", over="ignore"):
            rows = features.astype(np.float32)
            for tree in trees.estimators_:  # predict_proba looks at the rows again for each
                shares += tree.tree_.predict(rows)
            sure, failed = (shares / len(trees.estimators_)).T
            log_odds: Floats = np.log(failed) - np.log(sure)
        return log_odds

    def check(self, trees: Any, columns: int) -> None:
        """Refuse trees that point outside themselves."""
        check_forest(trees, columns, f"{self.name}.skops")


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(ForestPredictor)
