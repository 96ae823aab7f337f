"""Train on links whose bandwidth changes: each mode from beginning to end, and the tuner.

    python experiments/allreduce/run.py [--seeds 3] [--phase-s 30] [--quick] [--resume]
    python experiments/allreduce/run.py --constant unshaped,1000,200,50
    python experiments/allreduce/run.py --trace mine.tltrace

All arms of a seed see the same weights, batches and schedule, one after the other. The exit status
is 1 if a requirement is not met, 2 if an arm did not run, 3 if no lab is possible.
"""

import argparse
import json
import math
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from experiments.allreduce import judge, report, schedule, stored_arms
from experiments.allreduce.arm import TUNER, Arm, ArmError, Played, Settings, play_arm
from experiments.allreduce.lab import or_exit
from experiments.allreduce.model import POWERSGD_RANK, TOPK_SHARE
from experiments.allreduce.record import recorded
from experiments.allreduce.schedule import Schedule
from experiments.allreduce.trainer import add_workload, workload_of
from experiments.bench.machine import with_torch
from torchloom_core.demos.bandwidth.namespaces import Lab
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.activation.discovery import discover
from torchloom_threadlet.compression import MODES

HERE = Path(__file__).parent
POLICY = "allreduce_tuner"
QUALITY, QUALITY_OF_A_LONG_STAY = "quality.json", "quality-long.json"
QUICK_S = 10.0
LEAST_MBIT, MOST_MBIT = 1.0, 100_000.0
"""Of a level that stays."""


@dataclass(frozen=True)
class Bout:
    """A schedule that all arms are played on, and where its results go."""

    name: str
    schedule: Schedule


def levels_of(text: str) -> list[tuple[str, float | None]]:
    """Return the levels that an option names, each with its Mbit/s, None of one not shaped."""
    levels: list[tuple[str, float | None]] = []
    for level in text.split(","):
        try:
            mbit = None if level == "unshaped" else float(level)
        except ValueError:
            mbit = math.nan
        if mbit is not None and not LEAST_MBIT <= mbit <= MOST_MBIT:
            raise argparse.ArgumentTypeError(
                f"need unshaped, or from {LEAST_MBIT:g} to {MOST_MBIT:g} Mbit/s, was {level!r}"
            )
        levels.append((level, mbit))
    return levels


def quality_of(path: Path) -> dict[str, float]:
    """Return the quality of each mode, from a file of ``quality.py``.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Quality).quality
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"need a file of quality.py, was {path}: {error}") from None


class _Quality(msgspec.Struct):
    quality: dict[str, float]


def policy_lines(quality: dict[str, float], more: str) -> str:
    """Return the tuner's part of the Weaver's config."""
    lines = [f"[policies.{POLICY}]", more.strip(), f"[policies.{POLICY}.quality]"]
    return "\n".join(lines + [f"{mode} = {value}" for mode, value in quality.items()])


def arms_of(args: argparse.Namespace, quality: dict[str, float], console: Console) -> list[Arm]:
    """Return the requested arms; a tuner that is not installed is left out."""
    arms = []
    installed = any(each.name == POLICY and not each.problem for each in discover())
    for name in args.arms.split(","):
        if name in MODES:
            arms.append(Arm(name, name))
        elif name != TUNER:
            raise SystemExit(f"--arms: need {', '.join(MODES)} or {TUNER}, was {name}")
        elif installed:
            more = args.policy.read_text() if args.policy else ""
            arms.append(Arm(TUNER, "none", policy_lines(quality, more)))
        else:
            console.print(f"the policy {POLICY} is not installed: the arm {TUNER} is left out")
    if all(arm.name == TUNER for arm in arms):
        raise SystemExit("--arms: need a static mode at least, which the tuner is compared with")
    return arms


def bouts_of(args: argparse.Namespace) -> Iterator[Bout]:
    """Yield the requested schedules."""
    if args.trace:
        yield Bout("trace", recorded(args.trace, args.ranks))
    elif args.constant:
        seconds = args.phase_s * len(schedule.CHANGING)
        for level, mbit in args.constant:
            yield Bout(f"constant-{level}", schedule.steps([mbit], [seconds], args.ranks))
    else:
        yield Bout(args.schedule, schedule.of_options(args))


def play(
    lab: Lab, arms: Sequence[Arm], bout: Bout, args: argparse.Namespace, console: Console
) -> list[Played]:
    """Run each arm with each seed, alternating the arms."""
    settings = Settings(
        workload_of(args),
        args.topk_share,
        args.powersgd_rank,
        args.mark_s or args.phase_s / 15,
    )
    trials = []
    for seed in range(1, args.seeds + 1):
        for arm in arms:
            folder = args.logs / bout.name / f"{arm.name}-{seed}"
            key = stored_arms.key_of(arm, seed, bout.schedule, settings)
            played = stored_arms.load(folder, key, lab.ranks) if args.resume else None
            if played is None:
                shutil.rmtree(folder, ignore_errors=True)
                played = play_arm(lab, arm, seed, bout.schedule, settings, folder)
                stored_arms.store(folder, key, played)
            trials.append(played)
            loss = judge.curve(played)[-1][1]
            done = f"{len(played.steps())} steps, loss {loss:.4f}"
            failed = f", {played.failed_steps()} failed" if played.failed_steps() else ""
            console.print(f"{bout.name}, {arm.name}, seed {seed}: {done}{failed}")
    return trials


def conclude(
    trials: list[Played],
    bout: Bout,
    quality: dict[str, float],
    args: argparse.Namespace,
    console: Console,
) -> bool:
    """Print and store the results of a bout; return whether all requirements are met."""
    table = judge.phased(trials, bout.schedule)
    if bout.name.startswith("constant"):
        checks = judge.checks_of_constant(trials, bout.schedule)
        fixed_by_s = judge.STEADY_SHARE * bout.schedule[-1].end_s
    else:
        fixed_by_s = math.inf
        checks = judge.checks_of_changing(trials, bout.schedule, quality)
    report.show(trials, table, checks, bout.schedule, fixed_by_s, console)
    console.print(report.ideal_switcher(table, quality, bout.schedule), soft_wrap=True)
    args.out.mkdir(parents=True, exist_ok=True)
    report.draw_loss(trials, bout.schedule, args.out / f"{bout.name}-loss.png")
    report.draw_steps(table, bout.schedule, args.out / f"{bout.name}-steps.png")
    results = {
        "machine": with_torch(),
        "asked": stored_arms.options_of(args),
        "schedule": [asdict(phase) for phase in bout.schedule],
        "quality": quality,
        "steps": [asdict(row) for row in table],
        "costs": [asdict(cost) for cost in judge.costs(trials)],
        "trials": [
            {
                "arm": each.arm,
                "seed": each.seed,
                "began": each.began,
                "failed_steps": each.failed_steps(),
                "control_share": each.control_share(),
                "marks": each.marks(),
            }
            for each in trials
        ],
        "checks": [asdict(check) for check in checks],
    }
    text = json.dumps(results, indent=1) + "\n"
    (args.out / f"{bout.name}.json").write_text(text)
    return all(check.holds for check in checks)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=schedule.at_least(1), default=3, help="of weights and batches"
    )
    parser.add_argument("--arms", default=",".join((*MODES, TUNER)))
    parser.add_argument(
        "--constant", type=levels_of, help="levels instead of a schedule: unshaped,1000,200,50"
    )
    parser.add_argument("--trace", type=Path, help="a bundle with link_bytes_per_s instead")
    parser.add_argument("--quick", action="store_true", help="one seed, short phases: a trial")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="reuse finished arms from `--logs`",
    )
    parser.add_argument(
        "--mark-s", type=float, default=0.0, help="seconds; 0: fifteen times in `--phase-s`"
    )
    parser.add_argument(
        "--quality",
        type=Path,
        help=f"the quality of each mode: {QUALITY}; for a constant level, where a stay is long, "
        f"{QUALITY_OF_A_LONG_STAY}",
    )
    parser.add_argument("--policy", type=Path, help="more lines of the policy's table, TOML")
    parser.add_argument("--topk-share", type=float, default=TOPK_SHARE)
    parser.add_argument("--powersgd-rank", type=int, default=POWERSGD_RANK)
    parser.add_argument("--out", type=Path, default=HERE, help="results and plots")
    parser.add_argument("--logs", type=Path, default=Path("build/allreduce"))
    schedule.add_options(parser)
    add_workload(parser)
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds, args.phase_s = 1, QUICK_S
    console = Console(width=None if sys.stdout.isatty() else 110)
    args.quality = args.quality or HERE / (QUALITY_OF_A_LONG_STAY if args.constant else QUALITY)
    try:
        quality = quality_of(args.quality)
    except ValueError as error:
        parser.error(f"--quality: {error}")
    arms = arms_of(args, quality, console)
    good = True
    try:
        with or_exit(), Lab(args.ranks) as lab:
            for bout in bouts_of(args):
                trials = play(lab, arms, bout, args, console)
                good &= conclude(trials, bout, quality, args, console)
    except (ArmError, TraceError) as error:
        console.print(str(error), markup=False)
        return 2
    return 0 if good else 1


def _end(number: int, _frame: object) -> None:
    """End on a signal as on an error, with the lab and all that is in it."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    sys.exit(main())
