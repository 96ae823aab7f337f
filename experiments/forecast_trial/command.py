"""The command of an experiment: find the data, make a bundle, run the trial, report."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from experiments.forecast_trial import report
from experiments.forecast_trial.trial import Trial, run
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.lab.trace import Bundle

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TORCHLOOM_DATA", ROOT.parent / "shared" / "data"))

Import = Callable[[Path, Path], None]
"""Makes a bundle, the second path, of what lies in the folder, the first."""


def main(trial: Trial, folder: str, make: Import, results: Path) -> int:
    """Run a trial on the data in ``folder``; return the exit status."""
    parser = argparse.ArgumentParser(description=f"Choose and score predictors: {trial.name}.")
    parser.add_argument(
        "--results", type=Path, default=results, help=f"where results go [{results}]"
    )
    options = parser.parse_args()
    data = DATA / folder
    if not data.is_dir():
        print(f"need the recorded data at {data}; TORCHLOOM_DATA names their folder")
        return 1
    console = Console(width=None if sys.stdout.isatty() else 120)
    path = ROOT / "build" / "forecasts" / f"{folder}.tltrace"
    try:
        make(data, path)
        outcome = run(trial, Bundle.open(path), lambda line: print(line, flush=True))
    except TorchloomError as error:
        print(error)
        return 1
    report.show(outcome, console)
    report.write(outcome, options.results)
    return 0
