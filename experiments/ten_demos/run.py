"""Repeat `torchloom demo` and check every run of it: no failed step with torchLoom's action.

    python experiments/ten_demos/run.py [--runs 10] [--first-seed 0] [--out build/ten_demos]

Each run plays both acts of the demo with a seed of its own. The exit status is 1 if a run breaks
the promise or does not come to its end.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchloom_core.cli.demo import report
from torchloom_core.cli.demo.act import Act
from torchloom_core.cli.demo.play import play
from torchloom_core.cli.demo.scenario import Scenario
from torchloom_core.errors import TorchloomError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """One act in figures.

    Attributes
    ----------
    failed_steps : int
        Steps that a surviving group could not commit; the worst group's count.
    failed_anywhere : int
        The same, summed over all groups, with those that leave or join and with the start.
    stall_s : float
        Longest step of a survivor minus its median step, seconds.
    continuous : bool
        Whether the survivor committed every step number.
    finished : tuple of str
        Groups that trained to the last step.
    weights : int
        How many different final weights those groups have; 1 is bitwise equal.
    seconds : float
        From the first step with all groups to the last.
    """

    failed_steps: int
    failed_anywhere: int
    stall_s: float
    continuous: bool
    finished: tuple[str, ...]
    weights: int
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """Both acts of one demo.

    Attributes
    ----------
    took_s : float
        From the grant of the migration to its end, seconds.
    ahead_s : float
        From the end of the migration to the death of the node, seconds.
    broken : tuple of str
        Each part of the promise that did not hold.
    """

    seed: int
    without: Part
    with_action: Part
    took_s: float | None
    ahead_s: float | None
    broken: tuple[str, ...]


def measure(act: Act) -> Part:
    """Measure one act over all of its groups."""
    measures = report.measures_of(act)
    ends = {g: log.end for g, log in act.logs.items() if log.end and not log.end["drained"]}
    return Part(
        failed_steps=measures.failed_steps,
        failed_anywhere=sum(not row["committed"] for log in act.logs.values() for row in log.steps),
        stall_s=measures.stall_s,
        continuous=measures.continuous,
        finished=tuple(sorted(ends)),
        weights=len({end["weights"] for end in ends.values()}),
        steps=measures.steps,
        loss=measures.loss,
        seconds=measures.seconds,
    )


def judge(seed: int, before: Act, after: Act) -> Run:
    """Measure a demo and say what of its promise did not hold."""
    without, with_action = measure(before), measure(after)
    done = next(
        (
            entry
            for entry in report.story_of(after)
            if entry["tag"] == "outcome" and entry["action"]["kind"] == "migrate"
        ),
        None,
    )
    ahead_s = after.died_at - done["t"] if done and after.died_at else None
    in_time = ahead_s is not None and ahead_s > 0
    groups = len(after.scenario.places) - 1
    promises = {
        "no failed step": with_action.failed_anywhere == 0,
        "every step number": with_action.continuous,
        f"{groups} groups finish": len(with_action.finished) == groups,
        "weights bitwise equal": with_action.weights == 1,
        "all steps done": with_action.steps == after.scenario.steps,
        "migrated before the death": bool(done and done["result"] == "done" and in_time),
        "the same kill without action": before.died_at is not None,
    }
    return Run(
        seed=seed,
        without=without,
        with_action=with_action,
        took_s=done["took_s"] if done else None,
        ahead_s=ahead_s,
        broken=tuple(promise for promise, held in promises.items() if not held),
    )


def repeat(seeds: Sequence[int], out: Path, console: Console) -> tuple[list[Run], dict[int, str]]:
    """Play a demo for each seed; return the runs and why others did not come to their end."""
    runs: list[Run] = []
    unfinished: dict[int, str] = {}
    for seed in seeds:
        folder = out / f"seed-{seed}"
        with (out / f"seed-{seed}.txt").open("w", encoding="utf-8") as text:
            try:
                acts = play(Scenario(seed=seed), folder, Console(file=text, width=120))
                run = judge(seed, *acts)
            except (TorchloomError, ArithmeticError, LookupError) as error:
                unfinished[seed] = str(error)
                console.print(f"seed {seed}: did not come to its end: {error}", markup=False)
                continue
        runs.append(run)
        verdict = "; ".join(run.broken) or "holds"
        console.print(
            f"seed {seed}: {verdict}; without action {run.without.failed_steps} failed, "
            f"{run.without.stall_s:.2f} s stall",
            markup=False,
        )
    return runs, unfinished


Figure = tuple[str, Callable[[Part], float], str]

FIGURES: tuple[Figure, ...] = (
    ("failed steps of a survivor", lambda part: part.failed_steps, ".0f"),
    ("failed steps of all groups", lambda part: part.failed_anywhere, ".0f"),
    ("longest stall (s)", lambda part: part.stall_s, ".2f"),
    ("groups at the end", lambda part: len(part.finished), ".0f"),
    ("time (s)", lambda part: part.seconds, ".1f"),
    ("loss at the end", lambda part: part.loss, ".4f"),
)


def show(runs: Sequence[Run], unfinished: dict[int, str], console: Console) -> None:
    """Print medians and ranges of both acts, and how many runs held."""
    table = Table(title=f"{len(runs)} demos, median (range)", title_justify="left")
    table.add_column("")
    table.add_column("without torchLoom's action", justify="right")
    table.add_column("with it", justify="right")
    for name, figure, form in FIGURES:
        table.add_row(
            name,
            _span([figure(run.without) for run in runs], form),
            _span([figure(run.with_action) for run in runs], form),
        )
    table.add_row("step counter continuous", *_counts(runs, lambda part: part.continuous))
    table.add_row("final weights bitwise equal", *_counts(runs, lambda part: part.weights == 1))
    for name, values in (
        ("migration took (s)", [run.took_s for run in runs if run.took_s is not None]),
        ("done before the death (s)", [run.ahead_s for run in runs if run.ahead_s is not None]),
    ):
        table.add_row(name, "", _span(values, ".1f") if values else "-")
    console.print(table)
    held = sum(not run.broken for run in runs)
    console.print(f"the promise held in {held} of {len(runs) + len(unfinished)} runs")


def _span(values: Sequence[float], form: str) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def _counts(runs: Sequence[Run], holds: Callable[[Part], bool]) -> tuple[str, str]:
    return (
        f"{sum(holds(run.without) for run in runs)} of {len(runs)}",
        f"{sum(holds(run.with_action) for run in runs)} of {len(runs)}",
    )


def write(path: Path, runs: Sequence[Run], unfinished: dict[int, str]) -> None:
    """Write every run's figures and what they were measured on."""
    results = {
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "unfinished": unfinished,
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Save a plot: failed steps and the longest stall of each run, both acts side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(plot)
    failed, stall = plot.subplots(1, 2)
    places = range(len(runs))
    for axes, figure, title, form in (
        (failed, lambda part: part.failed_anywhere, "failed steps, all groups", "%d"),
        (stall, lambda part: part.stall_s, "longest stall of a survivor (s)", "%.2f"),
    ):
        for shift, label, colour, parts in (
            (-0.2, "without torchLoom's action", "#b5482e", [run.without for run in runs]),
            (0.2, "with it", "#1f6f8b", [run.with_action for run in runs]),
        ):
            heights = [figure(part) for part in parts]
            bars = axes.bar([p + shift for p in places], heights, 0.38, color=colour, label=label)
            axes.bar_label(bars, fmt=form, fontsize=7)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(places, [str(run.seed) for run in runs])
        axes.set_xlabel("seed")
        axes.spines[["top", "right"]].set_visible(False)
    failed.yaxis.get_major_locator().set_params(integer=True)
    failed.margins(y=0.2)
    failed.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    plot.savefig(path, dpi=130)


def main() -> int:
    """Repeat the demo, print, write and draw what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("build/ten_demos"), help="logs and trajectories"
    )
    parser.add_argument(
        "--results", type=Path, default=HERE, help="where results.json and ten_demos.png go"
    )
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 110)
    if options.out.exists():
        shutil.rmtree(options.out)
    options.out.mkdir(parents=True)
    seeds = range(options.first_seed, options.first_seed + options.runs)
    runs, unfinished = repeat(seeds, options.out, console)
    write(options.results / "results.json", runs, unfinished)
    if runs:
        show(runs, unfinished, console)
        draw(options.results / "ten_demos.png", runs)
    return int(bool(unfinished) or any(run.broken for run in runs))


if __name__ == "__main__":
    sys.exit(main())
