"""Restore a small checkpoint, train on, and compare with the undisturbed run.

python experiments/small_checkpoints/run.py [--seeds 5] [--jobs 2] [--quick] [--out FOLDER]

The exit status is 1 if a small checkpoint is larger, or changes the loss more, than the bars allow.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from joblib import Parallel, delayed
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import t as student

from experiments.bench.machine import with_torch
from experiments.small_checkpoints.training import ARMS, SMALL, Outcome, trial

HERE = Path(__file__).parent
FIRST_SEED = 1
"""Seeds from 100 on were for choosing the number of levels."""
STEPS, AFTER = 300, 60
QUICK_STEPS, QUICK_AFTER = 40, 12
MOST_RATIO, MOST_CHANGE = 0.22, 0.0005


def summary(outcomes: Sequence[Outcome], at: int) -> dict[str, float]:
    """Return mean, half its 95 % interval, and worst of the change at a step."""
    changes = [outcome.more[at] for outcome in outcomes]
    half = 0.0
    if len(changes) > 1:
        error = statistics.stdev(changes) / len(changes) ** 0.5
        half = float(student.ppf(0.975, len(changes) - 1)) * error
    return {
        "mean": statistics.fmean(changes),
        "half": half,
        "worst": max(changes, key=abs),
    }


def draw(arms: dict[str, list[Outcome]], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (arm, outcomes) in enumerate(arms.items()):
        for outcome in outcomes:
            steps, more = zip(*outcome.more.items(), strict=True)
            label = arm if outcome is outcomes[0] else None
            axes.plot(steps, list(map(abs, more)), "o-", color=f"C{number}", label=label, lw=1)
    axes.axhline(MOST_CHANGE, color="k", ls="--", lw=1, label="bar")
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set(xlabel="steps after the restore", ylabel="|change of held-out loss|, nats a character")
    axes.set_ylim(0)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one seed, 64 steps; writes nothing")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)

    steps, after = (QUICK_STEPS, QUICK_AFTER) if args.quick else (STEPS, AFTER)
    seeds = range(FIRST_SEED, FIRST_SEED + (1 if args.quick else args.seeds))
    ended = Parallel(args.jobs, return_as="generator")(
        delayed(trial)(seed, steps, after) for seed in seeds
    )
    trials = [outcomes for outcomes, _ in track(ended, "training", total=len(seeds))]
    arms = {arm: [outcomes[arm] for outcomes in trials] for arm in ARMS}

    marks = list(arms[SMALL][0].more)
    table = Table("checkpoint", "bytes of full", *(f"after {at} (95 %; worst)" for at in marks))
    rows = []
    for arm, outcomes in arms.items():
        ratio = max(outcome.ratio for outcome in outcomes)
        changes = {at: summary(outcomes, at) for at in marks}
        rows.append({"arm": arm, "ratio": ratio, "changes": changes})
        cells = ["{mean:+.5f} ± {half:.5f}; {worst:+.5f}".format(**of) for of in changes.values()]
        table.add_row(arm, f"{ratio:.3f}", *cells)
    Console().print(table)
    if not args.quick:
        results = {"steps": steps, "seeds": list(seeds), "machine": with_torch(), "arms": rows}
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        draw(arms, args.out / "loss.png")
    small, at_end = rows[ARMS.index(SMALL)], summary(arms[SMALL], after)
    holds = small["ratio"] <= MOST_RATIO and abs(at_end["worst"]) <= MOST_CHANGE
    print("within the bars" if holds else "beyond a bar")
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
