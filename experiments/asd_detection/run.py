"""Detect anomalies of 12 servers from 19 metrics, having learned from unlabelled time.

``python experiments/asd_detection/run.py`` does all of it.
"""

import sys
from pathlib import Path

from experiments.asd_detection.recording import STEP_S, import_asd
from experiments.forecast_trial.command import main
from experiments.forecast_trial.trial import DAY_S, Candidate, Fold, Trial
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_predictors.anomaly import AnomalyPredictor
from torchloom_predictors.logistic import LogisticPredictor
from torchloom_predictors.seasonal_residual import SeasonalResidualPredictor

ROW = "seasonal residual, 15 min"
METRICS = tuple(f"m{number:02}" for number in range(19))


def _seasonal(name: str, **options: object) -> Candidate:
    return Candidate(
        name=name, cls=SeasonalResidualPredictor, options={"metrics": METRICS, **options}
    )


def _anomaly(name: str, **options: object) -> Candidate:
    return Candidate(name=name, cls=AnomalyPredictor, options={"metrics": METRICS, **options})


CANDIDATES = (
    _seasonal(ROW, step_s=900.0),
    _seasonal("seasonal residual, 15 min, cap 30", step_s=900.0, cap=30.0),
    _seasonal("seasonal residual, 15 min, cap 100", step_s=900.0, cap=100.0),
    _seasonal("seasonal residual, 1 h", step_s=3600.0),
    _seasonal("seasonal residual, 1 h, cap 30", step_s=3600.0, cap=30.0),
    _seasonal("seasonal residual, 1 h, cap 100", step_s=3600.0, cap=100.0),
    *(
        _seasonal(
            f"seasonal residual, {name}, cap {cap:g}, level followed",
            step_s=step_s,
            cap=cap,
            follow_s=DAY_S,
        )
        for name, step_s in (("15 min", 900.0), ("1 h", 3600.0))
        for cap in (10.0, 100.0)
    ),
    _anomaly("PCA"),
    _anomaly("PCA, 80 % explained", explained=0.8),
    _anomaly("PCA, 97 % explained", explained=0.97),
    _anomaly("PCA, 15 min", spans_s=(900.0,)),
    _anomaly("isolation forest", method="forest"),
)

TRIAL = Trial(
    name="ASD, anomalies while they go on",
    # Pointwise, as it was labelled: runs of labels that are close together are not one.
    task=Task(kind="detect", horizon_s=3600.0, repair_s=86_400.0, merge_s=0.0),
    tick_s=STEP_S,
    every_s=STEP_S,
    learn_every_s=3 * STEP_S,
    folds=(Fold(cut_d=30, until_d=32.5), Fold(cut_d=32.5, until_d=35)),
    cut_d=35,
    candidates=CANDIDATES,
    row=ROW,
    beside=("seasonal residual, 15 min, cap 100", "PCA", "isolation forest"),
    baselines=(
        _seasonal("row rule", step_s=STEP_S, seasons_s=(), combine="max", cap=1000.0),
        Candidate(
            name="logistic, supervised",
            cls=LogisticPredictor,
            options={"metrics": METRICS, "half_lives_s": ()},
        ),
    ),
    published=0.33,
    false_alarms_per_node_day=0.1,
)

if __name__ == "__main__":
    sys.exit(main(TRIAL, "asd", import_asd, Path(__file__).parent))
