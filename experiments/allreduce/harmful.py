"""A harmful mode: the tuner changes to it, its guard rolls it back, and the loss recovers.

    python experiments/allreduce/harmful.py [--seeds 3]

The ranks train by SGD with momentum, at a rate at which ``none`` learns and top-k of 1 % diverges,
and the tuner is configured with equal quality for both. At first nothing is shaped; then links are
so slow for a while that top-k makes steps many times as fast; then nothing is shaped again. One run
has the tuner's guard, another a guard with an infinite band, which shows the effect of the mode.
Exit status as of ``run.py``.
"""

import argparse
import json
import math
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from matplotlib.figure import Figure
from rich.console import Console

from experiments.allreduce import schedule
from experiments.allreduce.arm import TUNER, Arm, ArmError, Played, Settings, play_arm
from experiments.allreduce.judge import Check
from experiments.allreduce.lab import or_exit
from experiments.allreduce.model import Workload
from experiments.allreduce.run import POLICY
from experiments.allreduce.stored_arms import options_of
from torchloom_core.demos.bandwidth.namespaces import Lab
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs

HERE = Path(__file__).parent
HARMFUL = "topk"
RANKS = 4
WORKLOAD = Workload(width=128, layers=2, context=32, batch=8, learning_rate=0.17, momentum=0.95)
BEFORE_S, SLOW_S, AFTER_S, SLOW_MBIT = 40.0, 40.0, 60.0, 10.0
OVER_STEPS = 15
"""The loss of a moment is the median over so many steps, all ranks'."""
WINDOW_S = 10.0
BAND, ENDLESS = 2.0, 1e6
HIGHEST = 6.0
"""Of the plot: a run that diverges leaves it."""
TUNED = f"""
[policies.{POLICY}]
modes = ["none", "{HARMFUL}"]
hysteresis = 2.0
guard_window_s = {WINDOW_S:g}
guard_band = {{band:g}}
ring = false
concurrency = false

[policies.{POLICY}.quality]
{HARMFUL} = 1.0
"""


@dataclass(frozen=True)
class Rescue:
    """The outcome of one run with the tuner, with or without a guard.

    Attributes
    ----------
    tried_s, back_s, returned_s : float
        When the mode was first used, when the run finally returned to ``none``, and when the loss
        returned to its value before the mode; inf if never.
    before, most : float
        The loss before, and the greatest afterwards.
    verdict : str
        The guard's reason for rolling the mode back; empty if it did not.
    """

    seed: int
    tried_s: float
    back_s: float
    returned_s: float
    before: float
    most: float
    verdict: str


def play(lab: Lab, seed: int, band: float, args: argparse.Namespace) -> tuple[Played, Path]:
    """Play the tuner with a guard of such a band; return what came of it, and where it lies."""
    planned = schedule.steps([None, args.mbit, None], [BEFORE_S, SLOW_S, AFTER_S], RANKS)
    folder = args.logs / "harmful" / f"band-{band:g}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    workload = replace(WORKLOAD, learning_rate=args.learning_rate)
    arm = Arm(TUNER, "none", TUNED.format(band=band))
    return play_arm(lab, arm, seed, planned, Settings(workload), folder), folder


def losses(played: Played) -> list[tuple[float, float, str]]:
    """Return when the loss was what, and in which mode: the median over the last steps."""
    by_step, steps = played.by_step(), played.steps()
    each = [statistics.median(of["loss"] for of in by_step[row["step"]]) for row in steps]
    return [
        (row["t"], statistics.median(each[max(0, n - OVER_STEPS + 1) : n + 1]), row["mode"])
        for n, row in enumerate(steps)
    ]


def verdict_of(folder: Path) -> str:
    """Return the guard's reason for rolling a change back."""
    for record in read_epochs(run_folder(folder / "state", "lab")):
        for line in record.lines():
            if line.kind == "judged":
                body = msgspec.json.decode(line.body)
                if body["hurt"]:
                    return str(body["text"])
    return ""


def rescue_of(played: Played, verdict: str) -> Rescue:
    """Return what became of a run in which the tuner was to try the mode."""
    seen = losses(played)
    modes = [mode for _, _, mode in seen]
    if HARMFUL not in modes:
        return Rescue(played.seed, math.inf, math.inf, math.inf, math.nan, math.nan, verdict)
    first = modes.index(HARMFUL)
    before = seen[max(0, first - 1)][1]
    last = len(modes) - 1 - modes[::-1].index(HARMFUL)
    most = max(loss if math.isfinite(loss) else math.inf for _, loss, _ in seen[first:])
    after = seen[last + 1 :]
    returned = [at_s for at_s, loss, _ in seen[first + 2 * OVER_STEPS :] if loss <= before]
    return Rescue(
        played.seed,
        seen[first][0],
        after[0][0] if after else math.inf,
        returned[0] if returned else math.inf,
        before,
        most,
        verdict,
    )


def checks(rescues: Sequence[Rescue], without: Sequence[Rescue]) -> list[Check]:
    """Return the requirements for a harmful mode."""
    found = []
    for each, alone in zip(rescues, without, strict=True):
        taken_s = each.returned_s - each.tried_s
        text = (
            f"seed {each.seed}: {HARMFUL} from {each.tried_s:.0f} s, loss {each.before:.2f} before "
            f"and {each.most:.2f} at the most; back after {each.back_s - each.tried_s:.0f} s by "
            f"the guard ({each.verdict or 'no rollback'}); the loss of before after "
            f"{taken_s:.0f} s"
        )
        found.append(Check(text, bool(each.verdict) and math.isfinite(taken_s)))
        alone_s = alone.returned_s - alone.tried_s
        text = (
            f"seed {each.seed}: without a guard {alone.before:.2f} before and {alone.most:.2f} at "
            f"the most; the loss of before after {alone_s:.0f} s"
        )
        found.append(Check(text, alone_s > taken_s))
    return found


def draw(tuned: Sequence[Played], without: Sequence[Played], path: Path) -> None:
    """Draw the loss over time of all runs, red while the harmful mode was used."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(BEFORE_S, BEFORE_S + SLOW_S, color="0.5", alpha=0.12, lw=0)
    for runs, style, name in (
        (tuned, "-", "with the tuner and its guard"),
        (without, ":", "without"),
    ):
        for place, played in enumerate(runs):
            seen = losses(played)
            axes.plot([s[0] for s in seen], [s[1] for s in seen], style, color="C0", lw=1.2,
                      label=name if place == 0 else None)  # fmt: skip
            hurt = [(at_s, loss if mode == HARMFUL else math.nan) for at_s, loss, mode in seen]
            axes.plot(*zip(*hurt, strict=True), style, color="C3", lw=2,
                      label=f"{HARMFUL}, {name}" if place == 0 else None)  # fmt: skip
    axes.set(xlabel="s since the first step", ylabel="loss, nats a character", ylim=(0, HIGHEST))
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of weights and batches")
    parser.add_argument("--learning-rate", type=float, default=WORKLOAD.learning_rate)
    parser.add_argument("--mbit", type=float, default=SLOW_MBIT, help="what the slow links carry")
    parser.add_argument("--out", type=Path, default=HERE, help="results and plot")
    parser.add_argument("--logs", type=Path, default=Path("build/allreduce"))
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 110)
    tuned, without = [], []
    rescues, alone = [], []
    try:
        with or_exit(), Lab(RANKS) as lab:
            for seed in range(1, args.seeds + 1):
                played, folder = play(lab, seed, BAND, args)
                tuned.append(played)
                rescues.append(rescue_of(played, verdict_of(folder)))
                without.append(play(lab, seed, ENDLESS, args)[0])
                alone.append(rescue_of(without[-1], ""))
                console.print(f"seed {seed}: played")
    except ArmError as error:
        console.print(str(error), markup=False)
        return 2
    found = checks(rescues, alone)
    for check in found:
        word = "met" if check.holds else "not met"
        console.print(f"{word}: {check.text}", markup=False, soft_wrap=True)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(tuned, without, args.out / "harmful.png")
    results = {
        "asked": options_of(args),
        "workload": asdict(replace(WORKLOAD, learning_rate=args.learning_rate)),
        "rescues": [asdict(each) for each in rescues],
        "without": [asdict(each) for each in alone],
        "checks": [asdict(check) for check in found],
    }
    (args.out / "harmful.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(check.holds for check in found) else 1


if __name__ == "__main__":
    sys.exit(main())
