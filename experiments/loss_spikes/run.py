"""Provoke loss spikes, and compare remedies with no action.

python experiments/loss_spikes/run.py [--seeds 12] [--jobs 2] [--out FOLDER]

The exit status is 1 if the guard is significantly worse than no action for any fault.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.loss_spikes.training import (
    FAULTS,
    NO_FAULT,
    OPTIMIZERS,
    STEP_S,
    STEPS,
    TRY_STEPS,
    Ran,
    trial,
    undisturbed,
)
from torchloom_policies.loss_guard import LossGuardPolicy
from torchloom_policies.loss_spike import MetricBaseline

HERE = Path(__file__).parent
FIRST_SEED = 1
"""Seeds from 100 on were for trying things out."""
ARMS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "skip": {"steps": ("skip",)},
    "clip": {"steps": ("clip",)},
    "rewind": {"steps": ("rewind",)},
    "loss_guard": {},
}
LONG_STEPS = 12_000
LONG_SEEDS = 2
NOISE_HOURS = 10
LOST = 9.0
"""Nats that count for a loss that is not finite, or nearly so."""
LAST = 3
"""The end of a curve is the mean of so many tries."""


def end(curve: Sequence[float]) -> float:
    return statistics.fmean(curve[-LAST:])


def behind(ran: Ran, reference: Ran) -> float:
    """Return how many steps less of the undisturbed training would have led to the same loss."""
    loss = end(ran.curve)
    if not math.isfinite(loss):
        return float(STEPS)
    means = [end(reference.curve[: n + 1]) for n in range(LAST - 1, len(reference.curve))]
    lowest = np.minimum.accumulate(means)
    places = np.arange(len(lowest)) * TRY_STEPS
    as_good = float(np.interp(-loss, -lowest, places))
    return float(places[-1] - as_good)


def above(ran: Ran, reference: Ran) -> float:
    """Return how much higher the loss ends, nats a character, at most ``LOST``."""
    more = end(ran.curve) - end(reference.curve)
    return min(more, LOST) if math.isfinite(more) else LOST


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of the mean, 95 %."""
    drawn = np.random.default_rng(0).choice(values, (4000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def rises_of_noise(kind: str) -> int:
    """Return how often pure noise about a falling line counts as a spike in ``NOISE_HOURS``."""
    options = LossGuardPolicy.Options()
    past = MetricBaseline(options.window_s, options.band, options.patience_ticks)
    random = np.random.default_rng(0)
    ticks = NOISE_HOURS * 3600
    noise = random.standard_t(3, ticks) if kind == "heavy tails" else random.normal(size=ticks)
    if kind == "slow":
        for n in range(1, ticks):
            noise[n] = 0.9 * noise[n - 1] + math.sqrt(1.0 - 0.9**2) * noise[n]
    rises, up = 0, False
    for n, value in enumerate(3.0 - n * 1e-5 + 0.02 * x for n, x in enumerate(noise)):
        past.take(float(n), value, True)
        is_up = bool(past.is_up)
        rises += is_up and not up
        up = is_up
    return rises


def draw(trials: list[dict[tuple[str, str], Ran]], optimizers: list[str], path: Path) -> None:
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(len(OPTIMIZERS), len(FAULTS), sharex=True, squeeze=False)
    for row, optimizer in enumerate(OPTIMIZERS):
        ours = [t for t, name in zip(trials, optimizers, strict=True) if name == optimizer]
        for column, fault in enumerate(FAULTS):
            for arm, line in zip(ARMS, ("k-", "C0:", "C1--", "C2-", "C3--"), strict=True):
                more = [
                    np.subtract(t[fault, arm].curve, t[NO_FAULT, ""].curve).tolist() for t in ours
                ]
                steps = [TRY_STEPS * (n + 1) for n in range(len(more[0]))]
                axes[row][column].plot(
                    steps, np.nan_to_num(np.median(more, axis=0), nan=LOST), line, label=arm, lw=1
                )
            axes[row][column].set(
                title=f"{optimizer}, {fault}", ylim=(-0.1, 1.5), xlim=(250, STEPS)
            )
            axes[row][column].grid(alpha=0.3)
    axes[0][0].legend(fontsize="x-small")
    figure.supxlabel("step")
    figure.supylabel("held-out loss above the undisturbed run's, nats (median)")
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)

    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    cases = [(optimizer, seed) for seed in seeds for optimizer in OPTIMIZERS]
    optimizers = [optimizer for optimizer, _ in cases]
    parallel = Parallel(args.jobs)
    trials = parallel(delayed(trial)(optimizer, seed, ARMS) for optimizer, seed in cases)
    quiet = parallel(
        delayed(undisturbed)(optimizer, seed, LONG_STEPS)
        for optimizer in OPTIMIZERS
        for seed in range(FIRST_SEED, FIRST_SEED + LONG_SEEDS)
    )
    kinds = ("white", "slow", "heavy tails")
    rises = parallel(delayed(rises_of_noise)(kind) for kind in kinds)

    table = Table(
        "optimizer",
        "fault",
        "arm",
        "steps behind (95 %)",
        "less than nothing",
        "nats lower",
        "lost",
    )
    rows, worse = [], False
    for optimizer in OPTIMIZERS:
        ours = [t for t, name in zip(trials, optimizers, strict=True) if name == optimizer]
        for fault in FAULTS:
            of = {arm: [behind(t[fault, arm], t[NO_FAULT, ""]) for t in ours] for arm in ARMS}
            nats = {arm: [above(t[fault, arm], t[NO_FAULT, ""]) for t in ours] for arm in ARMS}
            for arm, steps in of.items():
                lower = [a - b for a, b in zip(nats["nothing"], nats[arm], strict=True)]
                less = [a - b for a, b in zip(of["nothing"], steps, strict=True)]
                row = {
                    "optimizer": optimizer,
                    "fault": fault,
                    "arm": arm,
                    "behind": statistics.fmean(steps),
                    "behind_interval": interval(steps),
                    "less": statistics.fmean(less),
                    "less_interval": interval(less),
                    "above": statistics.fmean(nats[arm]),
                    "lower": statistics.fmean(lower),
                    "lower_interval": interval(lower),
                    "lost": sum(each == LOST for each in nats[arm]),
                    "acted": sum(bool(t[fault, arm].proposed) for t in ours),
                }
                rows.append(row)
                worse |= arm == "loss_guard" and row["less_interval"][1] < 0
                table.add_row(
                    optimizer,
                    fault,
                    arm,
                    "{:.0f} [{:.0f}, {:.0f}]".format(row["behind"], *row["behind_interval"]),
                    "{:+.0f} [{:+.0f}, {:+.0f}]".format(row["less"], *row["less_interval"]),
                    "{:+.3f} [{:+.3f}, {:+.3f}]".format(row["lower"], *row["lower_interval"]),
                    f"{row['lost']} of {len(ours)}",
                )
    hours = len(quiet) * LONG_STEPS * STEP_S / 3600
    results = {
        "steps": STEPS,
        "seeds": list(seeds),
        "arms": rows,
        "undisturbed_hours": hours,
        "undisturbed_proposals": sum(ran.proposed for ran in quiet),
        "noise_hours": NOISE_HOURS,
        "noise_rises": dict(zip(kinds, rises, strict=True)),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(trials, optimizers, args.out / "loss.png")
    Console().print(table)
    print(
        f"undisturbed: {results['undisturbed_proposals']} proposals in {hours:.1f} hours; "
        f"noise: {results['noise_rises']} rises in {NOISE_HOURS} hours each"
    )
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
