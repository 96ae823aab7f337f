"""Play every formula's process on the fleet model, for minutes, and compare.

Run it from the repository: ``python experiments/formulas/run.py [--scale 1.0] [--jobs 2]``.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Column, Table

from experiments.formulas import formulas, monte_carlo
from torchloom_core.lab.simulate.records import Result
from torchloom_core.plugin import daly_s, ettr

HERE = Path(__file__).parent


RUNS = 50


@dataclass(frozen=True)
class Process:
    """One published row: the process, what was published, and the closed form where it is exact.

    ``failures`` are those of one run, on average. ``is_waste`` marks figures that are shares lost,
    not shares used.
    """

    name: str
    play: Callable[..., Result]
    inputs: Mapping[str, Any]
    published: float
    formula: float
    failures: int
    is_exact: bool = False
    is_waste: bool = False


def daly(published: float, failures: int, *costs: float) -> Process:
    inputs = dict(zip(("mtbf_s", "save_s", "restart_s", "detect_s"), costs, strict=True))
    inputs["interval_s"] = daly_s(save_s=inputs["save_s"], mtbf_s=inputs["mtbf_s"])
    name = "checkpoints, M {:g}, C {:g}, R {:g}, D {:g}".format(*costs)
    play = monte_carlo.play_checkpoints
    return Process(name, play, inputs, published, ettr(**inputs), failures, is_exact=True)


def prediction(published: float, *costs: float) -> Process:
    names = ("mtbf_s", "save_s", "proactive_save_s", "detect_s", "restart_s")
    inputs = dict(zip((*names, "recall", "precision"), costs, strict=True))
    inputs["period_s"] = formulas.prediction_period_s(**inputs)
    name = "proactive checkpoints, mu {mtbf_s:g}, r {recall}, p {precision}".format(**inputs)
    formula = formulas.prediction_waste(**inputs)
    play = monte_carlo.play_predictions
    return Process(name, play, inputs, published, formula, 6000, is_waste=True)


def migration(published: float, failures: int, *costs: float) -> Process:
    names = ("mtbf_s", "save_s", "pause_s", "detect_s", "restart_s", "recall", "precision")
    inputs = dict(zip(names, costs, strict=True))
    job = {name: inputs[name] for name in ("save_s", "mtbf_s", "recall")}
    inputs["period_s"] = formulas.migration_period_s(**job)
    name = "migrations, mu {mtbf_s:g}, r {recall}, p {precision}".format(**inputs)
    formula = formulas.migration_waste(**inputs)
    play = monte_carlo.play_migrations
    return Process(name, play, inputs, published, formula, failures, is_waste=True)


def two_levels() -> Process:
    pattern = {
        "local_save_s": 5,
        "durable_save_s": 120,
        "job_mtbf_s": 14_400,
        "node_mtbf_s": 144_000,
        "segments": 15,
    }
    work_s = formulas.two_level_work_s(**pattern)
    inputs = {**pattern, "local_restart_s": 30, "durable_restart_s": 300, "work_s": work_s}
    exact = formulas.two_level_ettr_exact(**inputs)
    play = monte_carlo.play_two_levels
    return Process("two levels", play, inputs, 0.9303, exact, 5000, is_exact=True)


def steps() -> Process:
    inputs = {"groups": 30, "step_s": 10.9, "mtbf_s": 60, "rejoin_s": 24}
    formula = formulas.per_step_efficiency(**inputs)
    return Process("per step", monte_carlo.play_steps, inputs, 0.8257, formula, 10_000)


PROCESSES = (
    daly(0.9187, 4000, 11_135, 30, 60, 60),
    daly(0.8308, 6000, 6480, 60, 300, 0),
    daly(0.4687, 20_000, 828, 60, 180, 120),
    prediction(0.0709, 60_000, 600, 600, 60, 600, 0.85, 0.82),
    prediction(0.0811, 11_135, 60, 20, 60, 120, 0.6, 0.7),
    migration(0.0790, 3000, 11_135, 60, 30, 60, 300, 0.6, 0.7),
    migration(0.1875, 1000, 28_440, 300, 120, 60, 600, 0.3, 0.02),
    two_levels(),
    steps(),
)


def compare(process: Process, scale: float, jobs: int) -> dict[str, Any]:
    """Play one process, and return its distance from the published figure in standard errors."""
    failures = max(10, math.ceil(process.failures * scale))
    results = Parallel(n_jobs=jobs)(
        delayed(process.play)(seed, failures, **process.inputs) for seed in range(RUNS)
    )
    shares = [1 - one.ettr if process.is_waste else one.ettr for one in results]
    mean, error = monte_carlo.estimate(shares)
    return {
        "process": process.name,
        "what": "waste" if process.is_waste else "ETTR",
        "model": mean,
        "standard_error": error,
        "published_monte_carlo": process.published,
        "errors_to_it": (mean - process.published) / error,
        "formula": process.formula,
        "formula_is_exact": process.is_exact,
        "errors_to_formula": (mean - process.formula) / error,
        "failures": sum(one.failures + one.avoided for one in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="how long the runs are")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    columns = ("model", "± s.e.", "published", "in s.e.", "formula", "in s.e.")
    right = (Column(column, justify="right") for column in columns)
    table = Table("process", *right, title="The fleet model against what was published")
    rows = []
    for process in PROCESSES:
        row = compare(process, options.scale, options.jobs)
        rows.append(row)
        table.add_row(
            f"{row['process']} ({row['what']})",
            f"{row['model']:.5f}",
            f"{row['standard_error']:.5f}",
            f"{row['published_monte_carlo']:.4f}",
            f"{row['errors_to_it']:+.1f}",
            f"{row['formula']:.5f}" + ("" if row["formula_is_exact"] else " ~"),
            f"{row['errors_to_formula']:+.1f}",
        )
    Console(width=110).print(table)
    (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
