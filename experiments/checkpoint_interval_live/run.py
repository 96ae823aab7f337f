"""Kill real trainers at random, and compare the chosen checkpoint interval with fixed ones.

``python experiments/checkpoint_interval_live/run.py``: a trainer with ``loom.checkpoints`` beside a
real Weaver is killed with -9 after the same exponential times in every arm, and started again. One
arm begins with a bad interval, which the policy ``checkpoint_interval`` may change; the others keep
theirs. Time is scaled: a failure every half a minute, a save of some milliseconds.
"""

import argparse
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

from experiments.bench.machine import describe
from experiments.checkpoint_interval_live.report import (
    CHOSEN,
    Played,
    plot,
    shown,
    verdicts,
    with_equal_restarts,
)
from experiments.many_workers.run import Weaver
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.checkpoint_tiers import SAVED
from torchloom_core.wire.messages import Note

HERE = Path(__file__).parent
NEVER_S = 100_000.0
STEP_S = 0.02
DEADLINE_S = 120.0

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.5
[costs]
detect_s = 0.5
restart_s = 5.0
checkpoint_s = 0.1
[arbiter]
cooldown_s = 1.0
"""
POLICY = """
[policies.checkpoint_interval]
incident_s = 0.5
prior_failures_per_node_day = 864.0
period_s = 60.0
"""
"""Before any failure it assumes one in 100 s."""

T = TypeVar("T")

console = Console(width=None if sys.stdout.isatty() else 110)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is played: seconds between failures, failures, seeds, intervals in seconds."""

    mtbf_s: float = 25.0
    failures: int = 5
    seeds: int = 2
    intervals: tuple[float, ...] = (1.0, 2.5, 6.0, 15.0)
    first_s: float = 20.0
    state_mb: float = 60.0


QUICK = Scale(mtbf_s=12.0, failures=2, seeds=1, intervals=(1.0, 6.0))


class Run:
    """A trainer beside a Weaver, in a folder of its own."""

    def __init__(self, folder: Path, scale: Scale, every_s: float, policy: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self._scale, self._every_s = folder, scale, every_s
        self._weaver = Weaver(folder)
        (folder / "torchloom.toml").write_text(CONFIG + policy)
        asyncio.run(self._weaver.start())
        self._process: subprocess.Popen[bytes] | None = None

    def steps(self) -> list[tuple[int, float, float]]:
        """Return the steps so far, with the time of each and the interval in force."""
        path = self.folder / "steps"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(int(step), float(at), float(s)) for step, at, s in map(str.split, lines)]

    def start(self) -> float:
        """Start the trainer; return the time of its first step."""
        words = [str(self.folder), "--every-s", str(self._every_s), "--step-s", str(STEP_S)]
        words += ["--state-mb", str(self._scale.state_mb)]
        before = len(self.steps())
        join = {"TORCHLOOM_JOIN": str(self.folder / "state" / "join.json"), "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "trainer.py"), *words],
                env=os.environ | join,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_s = time.monotonic() + DEADLINE_S
        while len(self.steps()) == before:
            if time.monotonic() > until_s or self._process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.02)
        return self.steps()[before][1]

    def kill(self) -> float:
        """Kill the trainer with -9; return when."""
        assert self._process is not None
        at_s = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return at_s

    def end(self) -> None:
        """End the Weaver."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._weaver.end()

    def felt_s(self) -> list[float]:
        """Return what each save cost, by the Weaver's record."""
        return [
            max(float(note.fields[name]) for name in ("felt_s", "blocked_s"))
            for record in read_epochs(run_folder(self.folder / "state", "run"))
            for recorded in record.inputs()
            if isinstance(note := recorded.message, Note) and note.kind == SAVED
        ]


def uptimes_s(scale: Scale, seed: int) -> list[float]:
    """Return how long the trainer trains before each failure, exponential with the same mean.

    One from each of as many equally likely ranges, so that seeds differ less than chance.
    """
    drawn = random.Random(seed)
    count = scale.failures
    times = [
        -scale.mtbf_s * math.log1p(-(number + drawn.random()) / count) for number in range(count)
    ]
    drawn.shuffle(times)
    return times


def play(folder: Path, scale: Scale, arm: str, every_s: float, seed: int, step_s: float) -> Played:
    """Play one arm with one seed; ``step_s`` is the undisturbed time of a step."""
    run = Run(folder, scale, every_s, POLICY if arm == CHOSEN else "")
    try:
        begun_s, trained_s = 0.0, 0.0
        for uptime_s in uptimes_s(scale, seed):
            first_s = run.start()
            begun_s = begun_s or first_s
            time.sleep(max(0.0, first_s + uptime_s - time.monotonic()))
            killed_s = run.kill()
            trained_s += killed_s - first_s
        steps = run.steps()
    finally:
        run.end()
    intervals = [every_s]
    intervals += [new for (*_, old), (*_, new) in pairwise(steps) if new != old]
    return Played(
        arm=arm,
        seed=seed,
        steps=steps[-1][0] - steps[0][0],
        restarts_s=killed_s - begun_s - trained_s,
        trained_s=trained_s,
        step_s=step_s,
        intervals=intervals,
        felt_s=run.felt_s(),
    )


def undisturbed_step_s(folder: Path, scale: Scale, seconds: float) -> float:
    """Return the mean time of a step where nothing is saved."""
    run = Run(folder, scale, NEVER_S, "")
    try:
        run.start()
        time.sleep(seconds)
        run.kill()
    finally:
        run.end()
    times = [at_s for _, at_s, _ in run.steps()]
    times = times[len(times) // 4 :]
    return (times[-1] - times[0]) / (len(times) - 1)


def side_by_side(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of these, each in a thread of its own."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda task: task(), tasks))


def observed(scale: Scale, folder: Path, progress: Progress) -> list[Played]:
    """Play all arms one after the other, the seeds of each side by side."""
    arms = {f"{every_s:g} s": every_s for every_s in scale.intervals} | {CHOSEN: scale.first_s}
    task = progress.add_task("undisturbed", total=len(arms) + 1)
    seconds = min(20.0, scale.mtbf_s)
    steps_s = side_by_side(
        [
            partial(undisturbed_step_s, folder / f"undisturbed-{seed}", scale, seconds)
            for seed in range(scale.seeds)
        ]
    )
    played: list[Played] = []
    for arm, every_s in arms.items():
        progress.update(task, advance=1, description=arm)
        played += side_by_side(
            [
                partial(
                    play,
                    folder / f"{every_s:g}-{arm == CHOSEN}-{seed}",
                    scale,
                    arm,
                    every_s,
                    seed,
                    step_s,
                )
                for seed, step_s in enumerate(steps_s)
            ]
        )
    progress.update(task, advance=1)
    return played


def main() -> int:
    """Play, print the table, write results and plot; status 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one seed, two failures, two intervals"
    )
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    machine, began_s = describe(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        measured = observed(scale, Path(folder), progress)
    played = with_equal_restarts(measured)
    console.print(shown(played))
    found = verdicts(played)
    for what, holds in found.items():
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}", markup=False)
    console.print(f"{time.monotonic() - began_s:.0f} s")
    results = {
        "machine": machine,
        "scale": asdict(scale),
        "runs": [asdict(one) for one in measured],
        "verdicts": found,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(played, options.out / "goodput.png")
    return 0 if options.quick or all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
