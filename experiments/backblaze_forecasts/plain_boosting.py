"""What most people try first: boosted trees as scikit-learn has them, on the newest values."""

from typing import Any, ClassVar

from torchloom_core.lab.learning import RowLearner, RowOptions, Rows, fill_unknown_columns
from torchloom_core.plugin import Floats


class PlainBoosting(RowLearner):
    """``HistGradientBoostingClassifier()`` on all rows, without a look at the past."""

    name = "plain_boosting"
    trusted: ClassVar = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Those of any predictor of rows; left alone, there is no past, and all rows are kept."""

        spans_s: tuple[float, ...] = ()
        half_lives_s: tuple[float, ...] = ()
        max_healthy: int = 1_000_000

    def grow(self, rows: Rows) -> Any:
        """Grow the trees with every default."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        trees = HistGradientBoostingClassifier(random_state=0)
        return trees.fit(fill_unknown_columns(rows.features), rows.failed)

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)``, the sum of all leaves."""
        log_odds: Floats = trees.decision_function(features)
        return log_odds

    def check(self, trees: Any, columns: int) -> None:
        """Do nothing: this model is never stored."""
