"""What most people try first: boosted trees as scikit-learn has them, on the newest values."""

from typing import Any, ClassVar

import msgspec

from torchloom_core.features import Features
from torchloom_core.fleet.columns import Floats
from torchloom_core.learning import Rows
from torchloom_core.row_learner import RowLearner, with_something_known


class PlainBoosting(RowLearner):
    """``HistGradientBoostingClassifier()`` on all rows, without a look at the past."""

    name = "plain_boosting"
    trusted: ClassVar = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Metrics, and pace and horizon in seconds."""

        metrics: tuple[str, ...]
        horizon_s: float
        every_s: float

    def __init__(self, options: Options) -> None:
        super().__init__(
            Features(metrics=options.metrics),
            max_healthy=1_000_000,
            seed=0,
            horizon_s=options.horizon_s,
            every_s=options.every_s,
        )

    def grow(self, rows: Rows) -> Any:
        """Grow the trees with every default."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        trees = HistGradientBoostingClassifier(random_state=0)
        return trees.fit(with_something_known(rows.features), rows.failed)

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)``, the sum of all leaves."""
        log_odds: Floats = trees.decision_function(features)
        return log_odds

    def check(self, trees: Any, columns: int) -> None:
        """Accept them: nobody keeps this one."""
