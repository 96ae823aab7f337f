"""What the loss of two experts costs a task in which they matter, and what saves them.

python experiments/experts/masking.py [--seeds 5]

A worker with two of eight experts ends in the same step of every run; the loss on held-out data
is compared with that of the undisturbed run of the same seed.
"""

import argparse
import statistics
import sys
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.experts.arms import ARMS, MASKED, PEER, REPLICA, Arm, holders
from experiments.experts.driver import run, spread
from experiments.experts.figures import HERE, half_interval, write
from experiments.experts.task import Setting
from experiments.experts.worker import Options

VICTIM, END, STEPS = "w2", 200, 301
AFTER = (0, 1, 5, 10, 20, 50, 100)
"""Steps after the loss of the worker at which the loss on held-out data is measured."""
SHOWN = (0, 10, 50, 100)
SETTING = Setting(ffn=32)
"""Narrow experts: one cannot take over another's cluster as well."""
UNDISTURBED = "undisturbed"


def measure(arm: Arm | None, seed: int) -> dict[str, Any]:
    """Return the losses of one run, of all clusters and of the worst one."""
    options = Options(
        seed=seed,
        steps=STEPS,
        setting=SETTING,
        end_at=(VICTIM, END) if arm else ("", -1),
        mirror_every=arm.mirror_every if arm else 0,
        measured_at=(END - 1, *(END + after for after in AFTER)),
    )
    outcome = run(options, holders(arm) if arm else spread(), (arm or MASKED).decide)
    losses = {int(step) - END: of_step for step, of_step in outcome.first["losses"].items()}
    return {
        "arm": arm.name if arm else UNDISTURBED,
        "seed": seed,
        "loss": {after: of_step[-1] for after, of_step in losses.items()},
        "worst_cluster": {after: max(of_step[:-1]) for after, of_step in losses.items()},
    }


def more(runs: list[dict[str, Any]], name: str, after: int, what: str = "loss") -> list[float]:
    """Return how much higher an answer's loss is than the undisturbed one's, by seed."""
    by_seed = {
        arm: [run[what][after] for run in runs if run["arm"] == arm] for arm in (name, UNDISTURBED)
    }
    return [ours - theirs for ours, theirs in zip(*by_seed.values(), strict=True)]


def table(runs: list[dict[str, Any]]) -> Table:
    """Return the means over the seeds, with their 95 % intervals."""
    shown = Table("", *(f"{after} steps" for after in SHOWN), title="held-out loss after the death")
    plain = [run["loss"] for run in runs if run["arm"] == UNDISTURBED]
    shown.add_row(
        UNDISTURBED, *(f"{statistics.fmean(run[after] for run in plain):.4f}" for after in SHOWN)
    )
    for arm in ARMS:
        cells = []
        for after in SHOWN:
            values = more(runs, arm.name, after)
            cells.append(f"{statistics.fmean(values):+.4f} ± {half_interval(values):.4f}")
        shown.add_row(arm.name, *cells)
    return shown


def draw(runs: list[dict[str, Any]]) -> None:
    """Plot the loss by step after the death: mean over the seeds."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    for axes, what, title in zip(
        figure.subplots(1, 2),
        ("loss", "worst_cluster"),
        ("all tokens", "worst cluster"),
        strict=True,
    ):
        for name in (UNDISTURBED, *(arm.name for arm in ARMS)):
            ours = [run[what] for run in runs if run["arm"] == name]
            steps = sorted(ours[0])
            axes.plot(
                steps,
                [statistics.fmean(run[step] for run in ours) for step in steps],
                "o-",
                ms=3,
                lw=1,
                label=name,
                color="gray" if name == UNDISTURBED else None,
            )
        axes.set_yscale("log")
        axes.set_xlabel("steps after the death")
        axes.set_title(title, fontsize=10)
    figure.axes[0].set_ylabel("held-out loss")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(HERE / "masking.png", dpi=110)


def main() -> int:
    """Run all answers of all seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    cases = [(arm, seed) for seed in seeds for arm in (None, *ARMS)]
    runs = [measure(arm, seed) for arm, seed in track(cases, "training")]
    write("masking.json", {"runs": runs})
    draw(runs)
    Console().print(table(runs))
    cost, *saved = (statistics.fmean(more(runs, arm.name, 0)) for arm in (MASKED, PEER, REPLICA))
    return 0 if max(saved) < cost / 2 else 1


if __name__ == "__main__":
    sys.exit(main())
