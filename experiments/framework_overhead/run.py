"""Compare the steps of each framework, attached to a real Weaver, with the same without."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.bench.machine import with_torch
from experiments.framework_overhead.job import JOBS

ROOT = Path(__file__).parents[2]
FIRST = 20
"""Steps that are left out: the ranks connect, caches fill."""

AT_MOST = 1.02
RESAMPLES = 2000
SEED = 40


@contextmanager
def weaver(folder: Path) -> Iterator[Path]:
    """Run a Weaver, and give the path of its join file.

    It takes what the ranks leave of the cores, as it usually runs on another machine.
    """
    command = [sys.executable, "-m", "torchloom_core.cli", "weaver"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "TORCHLOOM_JOIN=" in line:
                break
        yield folder / ".torchloom" / "join.json"
    finally:
        process.terminate()
        process.wait()


def median_step_s(framework: str, steps: int, join: Path | None) -> list[float]:
    """Run a job of two ranks; return its median step by the clock, and of a core."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "300"
    command = [sys.executable, "-m"]
    if framework != "ray":  # which starts its workers itself
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += ["experiments.framework_overhead.job", framework, "--steps", str(steps)]
    if join is not None:
        environment |= {"TORCHLOOM_JOIN": str(join), "TORCHLOOM_JOB": os.urandom(4).hex()}
        command.append("--attached")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
    found = [line for line in done.stdout.splitlines() if line.startswith("times ")]
    if done.returncode or not found:
        raise SystemExit(f"{framework}: the job failed:\n{done.stderr[-2000:]}")
    seconds = json.loads(found[0].removeprefix("times "))
    return [statistics.median(column) for column in zip(*seconds[FIRST:], strict=True)]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median ratio."""
    draw = np.random.default_rng(SEED).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(draw, axis=1), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Run pairs of jobs, in an order that is drawn, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="pairs of jobs per framework")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--frameworks", nargs="+", choices=JOBS, default=list(JOBS))
    options = parser.parse_args()
    order = random.Random(SEED)
    pairs: dict[str, list[tuple[list[float], list[float]]]] = {
        name: [] for name in options.frameworks
    }
    with tempfile.TemporaryDirectory() as folder, weaver(Path(folder)) as join:
        jobs = [name for _ in range(options.rounds) for name in options.frameworks]
        for name in track(jobs, "pairs of jobs"):
            found = {}
            for is_attached in order.sample([False, True], 2):
                found[is_attached] = median_step_s(
                    name, options.steps, join if is_attached else None
                )
            pairs[name].append((found[False], found[True]))
    table = Table(
        *("framework", "seconds of", "step alone, ms", "attached, ms", "ratio"),
        *("95 % interval", "bar 1.02"),
    )
    results = {}
    for name, found_pairs in pairs.items():
        results[name] = {"version": version(name), "pairs_s": found_pairs}
        for column, what in enumerate(("the clock", "a core")):
            own = [(alone[column], attached[column]) for alone, attached in found_pairs]
            ratios = [attached / alone for alone, attached in own]
            low, high = interval(ratios)
            ratio = statistics.median(ratios)
            results[name][f"ratio by {what}"] = [ratio, low, high]
            means = [1e3 * statistics.median(some) for some in zip(*own, strict=True)]
            within = "in the interval" if low <= AT_MOST else "missed"
            table.add_row(
                f"{name} {version(name)}",
                what,
                *(f"{mean:.1f}" for mean in means),
                f"{ratio:.3f}",
                f"[{low:.3f}, {high:.3f}]",
                "holds" if high <= AT_MOST else within,
            )
    Console().print(table)
    sys.stdout.write(json.dumps({"machine": with_torch(), "results": results}) + "\n")


if __name__ == "__main__":
    main()
