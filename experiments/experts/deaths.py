"""Kill an expert's host with -9 at random moments, and measure what the others lose.

python experiments/experts/deaths.py [--kills 20] [--seed 1]

The exit status is 1 if a death costs more than .4 s in the median, or more than one step.
"""

import argparse
import random
import statistics
import sys
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.experts.arms import ARMS, Arm
from experiments.experts.driver import WORKERS, random_kill
from experiments.experts.figures import HERE, write
from experiments.experts.program import Run

STEPS, FIRST, LAST = 40, 15, 30
MOST_STALL_S, MOST_FAILED = 0.4, 1


def measure(arm: Arm, seed: int) -> dict[str, Any]:
    """Return the figures of one death."""
    kill = random_kill(random.Random(seed), FIRST, LAST)
    run = Run(arm, seed, STEPS, kill)
    commits = run.commits[next(name for name in WORKERS if name != kill.victim)]
    gaps = {step: commits[step] - commits[step - 1] for step in sorted(commits)[1:]}
    return {
        "arm": arm.name,
        "seed": seed,
        "victim": kill.victim,
        "stall_s": run.stall_s(),
        "failed_steps": run.failed_steps,
        "lost_steps": STEPS - len(commits),
        "step_before_s": statistics.median(s for n, s in gaps.items() if 5 < n <= kill.step),
        "step_after_s": statistics.median(s for n, s in gaps.items() if n > kill.step + 2),
        "experts_left": run.experts_left,
    }


def table(deaths: list[dict[str, Any]]) -> Table:
    """Return the medians of each answer."""
    shown = Table(
        "answer",
        "stall ms",
        "worst",
        "failed",
        "experts",
        "step ms",
        "afterwards",
        title=f"{len(deaths) // len(ARMS)} deaths each",
    )
    for arm in ARMS:
        of_arm = [death for death in deaths if death["arm"] == arm.name]
        ms = {
            name: 1e3 * statistics.median(death[name] for death in of_arm)
            for name in ("stall_s", "step_before_s", "step_after_s")
        }
        worst_ms = 1e3 * max(death["stall_s"] for death in of_arm)
        shown.add_row(
            arm.name,
            f"{ms['stall_s']:.0f}",
            f"{worst_ms:.0f}",
            str(max(death["failed_steps"] for death in of_arm)),
            str(min(death["experts_left"] for death in of_arm)),
            f"{ms['step_before_s']:.0f}",
            f"{ms['step_after_s']:.0f}",
        )
    return shown


def draw(deaths: list[dict[str, Any]]) -> None:
    """Plot all stalls."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for at, arm in enumerate(ARMS):
        stalls = sorted(1e3 * death["stall_s"] for death in deaths if death["arm"] == arm.name)
        spread = [at + 0.3 * (n / max(len(stalls) - 1, 1) - 0.5) for n in range(len(stalls))]
        axes.plot(spread, stalls, "o", ms=4)
    axes.axhline(1e3 * MOST_STALL_S, color="gray", ls="--", lw=1)
    axes.set_xticks(range(len(ARMS)), [arm.name for arm in ARMS])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("last commit to next, ms")
    figure.savefig(HERE / "deaths.png", dpi=110)


def main() -> int:
    """Run all deaths, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20, help="deaths of each answer")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first death")
    options = parser.parse_args()
    cases = [(arm, options.seed + n) for n in range(options.kills) for arm in ARMS]
    deaths = [measure(arm, seed) for arm, seed in track(cases, "killing")]
    write("deaths.json", {"deaths": deaths})
    draw(deaths)
    Console().print(table(deaths))
    holds = all(
        statistics.median(d["stall_s"] for d in deaths if d["arm"] == arm.name) <= MOST_STALL_S
        for arm in ARMS
    ) and all(d["failed_steps"] <= MOST_FAILED and not d["lost_steps"] for d in deaths)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
