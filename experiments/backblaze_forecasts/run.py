"""Forecast failures of drives a week ahead, from one scrape of their SMART values a day.

``python experiments/backblaze_forecasts/run.py`` does all of it.
"""

import sys
from functools import partial
from pathlib import Path

from experiments.backblaze_forecasts.plain_boosting import PlainBoosting
from experiments.forecast_trial.command import main
from experiments.forecast_trial.trial import DAY_S, Candidate, Fold, Trial
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.trace.importers import import_backblaze
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.forest import ForestPredictor
from torchloom_predictors.threshold_rules import ThresholdRulesPredictor

ROW = "boosting, scikit-learn's defaults"
RULE = "rule SMART 5 and 197"
METRICS = ("smart_1", "smart_194", "smart_197", "smart_5", "smart_9")
SPANS_S = (3 * DAY_S, 7 * DAY_S)
_TELEMETRY = {"metrics": METRICS, "spans_s": SPANS_S, "half_lives_s": ()}
_BAD_SECTORS = ("smart_5", "smart_197")


def _rules(*parts: tuple[str, ...]) -> dict[str, object]:
    return {"rules": [{"when": [{"metric": metric} for metric in part]} for part in parts]}


CANDIDATES = (
    Candidate(name=ROW, cls=PlainBoosting, options={"metrics": METRICS}),
    Candidate(name=RULE, cls=ThresholdRulesPredictor, options=_rules(_BAD_SECTORS)),
    Candidate(
        name="rules SMART 5, 197, both",
        cls=ThresholdRulesPredictor,
        options=_rules(_BAD_SECTORS, *((metric,) for metric in _BAD_SECTORS)),
    ),
    Candidate(name="boosting", cls=BoostingPredictor, options=_TELEMETRY),
    Candidate(
        name="boosting, strong penalty",
        cls=BoostingPredictor,
        options={**_TELEMETRY, "max_leaves": 8, "l2": 10.0},
    ),
    *(
        Candidate(
            name=f"forest, leaves of {rows}",
            cls=ForestPredictor,
            options={**_TELEMETRY, "min_leaf_rows": rows},
        )
        for rows in (3, 5, 10)
    ),
    Candidate(
        name="forest, newest values",
        cls=ForestPredictor,
        options={**_TELEMETRY, "spans_s": ()},
    ),
)

TRIAL = Trial(
    name="Backblaze, failures of a drive within 7 days",
    task=Task(horizon_s=7 * DAY_S, repair_s=DAY_S),
    tick_s=DAY_S,
    every_s=DAY_S,
    learn_every_s=DAY_S,
    folds=tuple(Fold(cut_d=cut_d, until_d=24) for cut_d in (10, 12, 14)),
    cut_d=24,
    candidates=CANDIDATES,
    row=ROW,
    beside=(RULE, "boosting", "boosting, strong penalty"),
    published=0.084,
    false_alarms_per_node_day=0.0005,
)

if __name__ == "__main__":
    make = partial(import_backblaze, force=True)
    sys.exit(main(TRIAL, "backblaze", make, Path(__file__).parent))
