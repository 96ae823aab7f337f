"""Forecast faults of 400 GPU servers a week ahead, from the history of their faults alone.

``python experiments/infinitehbd_forecasts/run.py`` does all of it.
"""

import math
import sys
from functools import partial
from pathlib import Path

from experiments.forecast_trial.command import main
from experiments.forecast_trial.trial import DAY_S, Candidate, Fold, Trial
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.trace.importers import import_infinitehbd
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.fault_history import FaultHistoryPredictor
from torchloom_predictors.forest import ForestPredictor
from torchloom_predictors.survival import SurvivalPredictor

ROW = "decayed count, tau 30 d"
_LONG_S = (7 * DAY_S, 20 * DAY_S, 60 * DAY_S)


def _count(tau_d: float) -> Candidate:
    half_life_s = tau_d * math.log(2) * DAY_S
    options = {"half_life_s": half_life_s, "fit_half_lives_s": ()}
    return Candidate(
        name=f"decayed count, tau {tau_d:g} d", cls=FaultHistoryPredictor, options=options
    )


CANDIDATES = (
    *(_count(tau_d) for tau_d in (7, 15, 30, 60, 120)),
    Candidate(name="fault_history, fitted", cls=FaultHistoryPredictor),
    *(
        Candidate(name=f"survival, l2 {l2:g}", cls=SurvivalPredictor, options={"l2": l2})
        for l2 in (1.0, 100.0)
    ),
    *(
        Candidate(
            name=f"survival, l2 {l2:g}, long",
            cls=SurvivalPredictor,
            options={"l2": l2, "half_lives_s": _LONG_S},
        )
        for l2 in (1.0, 100.0)
    ),
    Candidate(name="boosting", cls=BoostingPredictor),
    Candidate(
        name="boosting, small",
        cls=BoostingPredictor,
        options={"half_lives_s": _LONG_S, "max_leaves": 4, "min_leaf_rows": 200},
    ),
    *(
        Candidate(
            name=f"forest, leaves of {rows}",
            cls=ForestPredictor,
            options={"half_lives_s": _LONG_S, "min_leaf_rows": rows},
        )
        for rows in (20, 200)
    ),
)

TRIAL = Trial(
    name="InfiniteHBD, faults of a node within 7 days",
    task=Task(horizon_s=7 * DAY_S, repair_s=DAY_S),
    tick_s=DAY_S,
    every_s=DAY_S,
    learn_every_s=DAY_S,
    folds=tuple(Fold(cut_d=cut_d, until_d=cut_d + 35) for cut_d in (103, 138, 173, 208)),
    cut_d=243,
    candidates=CANDIDATES,
    row=ROW,
    beside=("fault_history, fitted", "survival, l2 1", "boosting"),
    published=0.089,
    false_alarms_per_node_day=0.009,
)

if __name__ == "__main__":
    make = partial(import_infinitehbd, force=True)
    sys.exit(main(TRIAL, "infinitehbd", make, Path(__file__).parent))
