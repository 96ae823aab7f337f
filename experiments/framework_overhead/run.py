"""Compare steps of each framework with torchLoom, and without it, beside a real Weaver."""

import argparse
import json
import os
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
from experiments.framework_overhead.job import BLOCK, JOBS

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


def steps_s(framework: str, steps: int, join: Path) -> list[list[float]]:
    """Run a job of two ranks; return each step's seconds by the clock, and of a core."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    environment |= {"TORCHLOOM_JOIN": str(join), "TORCHLOOM_JOB": os.urandom(4).hex()}
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "300"
    command = [sys.executable, "-m"]
    if framework != "ray":  # which starts its workers itself
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += ["experiments.framework_overhead.job", framework, "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
    found = [line for line in done.stdout.splitlines() if line.startswith("times ")]
    if done.returncode or not found:
        raise SystemExit(f"{framework}: the job failed:\n{done.stderr[-2000:]}")
    seconds: list[list[float]] = json.loads(found[0].removeprefix("times "))
    return seconds


def neighbours(seconds: list[float]) -> list[tuple[float, float]]:
    """Return the mean step of each block without torchLoom, and of the block after it.

    The first steps of a job are left out: its ranks connect, caches fill.
    """
    blocks = [seconds[at : at + BLOCK] for at in range(0, len(seconds) - BLOCK + 1, BLOCK)]
    means = [statistics.mean(block) for block in blocks]
    return [(means[at], means[at + 1]) for at in range(FIRST // BLOCK, len(means) - 1, 2)]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median ratio."""
    draw = np.random.default_rng(SEED).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(draw, axis=1), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Run the jobs, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="jobs per framework")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--frameworks", nargs="+", choices=JOBS, default=list(JOBS))
    options = parser.parse_args()
    found: dict[str, list[list[tuple[float, float]]]] = {
        name: [[], []] for name in options.frameworks
    }
    with tempfile.TemporaryDirectory() as folder, weaver(Path(folder)) as join:
        jobs = [name for _ in range(options.rounds) for name in options.frameworks]
        for name in track(jobs, "jobs"):
            columns = zip(*steps_s(name, options.steps, join), strict=True)
            for own, column in zip(found[name], columns, strict=True):
                own += neighbours(list(column))
    table = Table(
        *("framework", "seconds of", "step alone, ms", "attached, ms", "ratio"),
        *("95 % interval", "bar 1.02"),
    )
    results = {}
    for name, columns in found.items():
        results[name] = {"version": version(name), "blocks_s": columns}
        for own, what in zip(columns, ("the clock", "a core"), strict=True):
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
