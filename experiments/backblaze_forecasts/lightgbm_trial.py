"""See which library's trees forecast better in ``boosting``, on earlier time alone.

``python experiments/backblaze_forecasts/lightgbm_trial.py`` has it learn with scikit-learn and
with LightGBM and be judged on the folds of this trace and of InfiniteHBD on which candidates are
chosen. The scored time is not looked at.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.backblaze_forecasts import run as backblaze
from experiments.forecast_trial.command import DATA, ROOT
from experiments.forecast_trial.trial import Candidate, Trial, judge_fold
from experiments.infinitehbd_forecasts import run as infinitehbd
from torchloom_core.lab.evaluate.forecasts.alarms import Judged
from torchloom_core.lab.evaluate.forecasts.intervals import Clusters, Estimate
from torchloom_core.lab.evaluate.forecasts.scores import auprc_of
from torchloom_core.lab.trace import Bundle
from torchloom_core.lab.trace.importers import import_backblaze, import_infinitehbd
from torchloom_core.plugin import Floats, Ints
from torchloom_predictors.boosting import BoostingPredictor

SEEDS = range(3)
TRIALS = (
    ("backblaze", backblaze.TRIAL, import_backblaze),
    ("infinitehbd", infinitehbd.TRIAL, import_infinitehbd),
)


def judged_folds(trial: Trial, bundle: Bundle, candidate: Candidate) -> list[Judged]:
    """Judge a candidate on every fold, with every seed."""
    seeded = [having(candidate, seed=seed) for seed in SEEDS]
    return [judge_fold(trial, bundle, one, fold) for one in seeded for fold in trial.folds]


def having(candidate: Candidate, **options: object) -> Candidate:
    """Return the candidate with these options as well."""
    return replace(candidate, options={**candidate.options, **options})


class MeanAuprc:
    """The mean AUPRC over folds, of samples that may be in several of them.

    Attributes
    ----------
    estimate : Estimate
        Over the moments of all folds.
    clusters : Clusters
        Of the same.
    """

    def __init__(self, folds: Sequence[Judged]) -> None:
        first = folds[0]
        times_ns: Ints = np.unique(np.concatenate([judged.times_ns for judged in folds]))
        pulls: Floats = np.zeros((len(times_ns), first.outcome.shape[1]))
        known = np.zeros(pulls.shape, dtype=np.bool_)
        values = []
        for judged in folds:
            own, at = auprc_of(judged), np.searchsorted(times_ns, judged.times_ns)
            time, component = np.nonzero(~np.isnan(judged.outcome))
            pulls[at[time], component] += own.influence / len(folds)
            known[at[time], component] = True
            values.append(own.value)
        self.estimate = Estimate(float(np.mean(values)), pulls[known])
        self.clusters = Clusters(times_ns, known, first.task.horizon_s)


def compare(trial: Trial, bundle: Bundle) -> Table:
    """Return a table of what each reaches, and the difference."""
    table = Table(title=f"{trial.name}: AUPRC on earlier time", title_justify="left")
    for column in ("options", "scikit-learn", "LightGBM", "difference"):
        table.add_column(column, justify="left" if column == "options" else "right")
    for candidate in (one for one in trial.candidates if one.cls is BoostingPredictor):
        scikit_learn, light = (
            MeanAuprc(judged_folds(trial, bundle, having(candidate, library=library)))
            for library in ("scikit-learn", "lightgbm")
        )
        above = light.clusters.difference(light.estimate, scikit_learn.estimate)
        interval = f"{above.value:+.4f} [{above.low:+.4f}, {above.high:+.4f}]"
        each = (f"{scikit_learn.estimate.value:.4f}", f"{light.estimate.value:.4f}")
        table.add_row(candidate.name, *each, interval)
    table.caption = above.method
    return table


def main() -> int:
    """Compare on both traces; return the exit status."""
    if not find_spec("lightgbm"):
        print("need LightGBM: pip install '.[lightgbm]'")
        return 1
    console = Console(width=None if sys.stdout.isatty() else 120)
    for folder, trial, make in TRIALS:
        path = ROOT / "build" / "forecasts" / f"{folder}.tltrace"
        if not (DATA / folder).is_dir():
            print(f"need the recorded data at {DATA / folder}; TORCHLOOM_DATA names their folder")
            return 1
        make(DATA / folder, path, force=True)
        console.print(compare(trial, Bundle.open(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
