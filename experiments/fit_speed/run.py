"""How long a fit and a score take in this tree and in another one, side by side.

    git worktree add ../before COMMIT
    python experiments/fit_speed/run.py ../before [--turns 5] [--interval-s 900]

Both fit the same predictors on the same synthetic trace, which scores them and their baselines, and
score the models again as an evaluation does; in turns and in processes of their own. Processor time
counts, as it is what a busy machine disturbs least. Writes results.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDERS = (".", "policies", "predictors", "threadlet")
TRACE = ("--nodes", "64", "--days", "60", "--seed", "1")
FIT = ("--until", "40d", "--every-s", "3600", "--option", "horizon_s=21600")
PREDICTORS = ("boosting", "forest", "fault_history")


def work(tree: str, name: str, interval_s: str) -> dict[str, list[str]]:
    """Return what is timed of a predictor: the words of each command."""
    fit = [*FIT, "--tick-s", interval_s]
    model = f"{tree}-{name}.tlmodel"
    score = ["--mode", "replay", "--predictor", f"{name}={model}", "--out", f"{tree}-scored"]
    return {
        "fit": ["fit", "t.tltrace", "--predictor", name, *fit, "--force", "--out", model],
        "score": ["evaluate", "t.tltrace", *score],
    }


def torchloom(tree: Path, words: Sequence[str], folder: Path) -> float:
    """Run one command of a tree; return its processor time, seconds."""
    path = os.pathsep.join(str((tree / name).resolve()) for name in FOLDERS)
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "from torchloom_core.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        raise SystemExit(f"{tree}: torchloom {' '.join(words)}: {found.stderr.strip()}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other tree")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--interval-s", default="900", help="between the samples of the trace")
    parser.add_argument("--predictor", action="append", choices=PREDICTORS, help="default: all")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    asked = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 100)
    trees = {"before": asked.before, "now": ROOT}
    predictors = asked.predictor or PREDICTORS
    took: dict[str, dict[str, dict[str, list[float]]]] = {
        what: {name: {tree: [] for tree in trees} for name in predictors}
        for what in ("fit", "score")
    }
    with tempfile.TemporaryDirectory() as temporary, Progress(console=console) as bar:
        folder = Path(temporary)
        sampled = [*TRACE, "--interval-s", asked.interval_s]
        torchloom(ROOT, ["trace", "synthesize", "t.tltrace", *sampled], folder)
        for turn in bar.track(range(asked.turns), description="in turns"):
            for name in predictors:
                order = list(trees.items())
                for tree, path in order if turn % 2 else reversed(order):
                    for what, words in work(tree, name, asked.interval_s).items():
                        took[what][name][tree].append(torchloom(path, words, folder))
    table = Table("", "predictor", "before, s", "now, s", "now / before", "range")
    for what, of in took.items():
        for name, each in of.items():
            ratios = [now / was for was, now in zip(each["before"], each["now"], strict=True)]
            medians = [f"{statistics.median(each[tree]):.1f}" for tree in trees]
            ends = f"{min(ratios):.2f} to {max(ratios):.2f}"
            table.add_row(what, name, *medians, f"{statistics.median(ratios):.2f}", ends)
    console.print(table)
    asked.out.write_text(json.dumps({"cores": os.cpu_count(), "cpu_s": took}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
