"""Kill workers of real jobs while one phase of their start is slow, and compare the recoveries.

``python experiments/recovery_phases/run.py`` plays a torchrun job of two ranks with checkpoints,
and a torchft job of two groups, each beside a real Weaver. Before each kill -9 another phase of the
trainers' next start is made slow. The measured time is from the kill to the first step after it, by
the trainers' own journals; it is compared with the sum of the phases that the Weaver's record
gives, and the slow phase with the one that is named as the longest.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments.bench.machine import describe
from experiments.many_workers.run import Weaver
from torchloom_core.demos.processes import kill_tree
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.recorded_recoveries import recorded_recoveries
from torchloom_core.live.trajectory.recovery_phases import PHASES, Recovery
from torchloom_core.live.transport.ports import lasting_port

HERE = Path(__file__).parent
TRAINER = HERE / "trainer.py"
BOUND = 0.02
DEADLINE_S = 120.0
BETWEEN_S = 4.0
"""Training between two kills: a checkpoint is saved, and the last recovery is recorded."""

SLOW = {
    "torchrun": ("import", "build", "restore", "data_loader", "first_step"),
    "torchft": ("relaunch", "import", "build", "state_transfer", "first_step"),
}
"""The phases that are made slow."""

console = Console(width=None if sys.stdout.isatty() else 110)


@dataclass
class Kill:
    """A kill, and what became of it; times are seconds since the epoch."""

    framework: str
    slow: str
    worker: str
    at_s: float
    back_s: float
    recovery: Recovery | None = None

    @property
    def measured_s(self) -> float:
        """Seconds from the kill to the first step after it."""
        return self.back_s - self.at_s

    @property
    def difference(self) -> float:
        """The sum of the phases, relative to the measured time; less 1."""
        if self.recovery is None:
            return float("nan")
        return sum(self.recovery.phases.values()) / self.measured_s - 1

    @property
    def is_right(self) -> bool:
        """Whether the sum is within the bound and the right phase is named."""
        named = self.recovery is not None and self.recovery.longest == self.slow
        return named and abs(self.difference) <= BOUND


class Job:
    """A real job in a folder; ``workers`` are those that are killed in turn."""

    framework: str
    workers: tuple[str, ...]

    def __init__(self, folder: Path, weaver: Weaver) -> None:
        self.folder = folder
        self.weaver = weaver
        self.slow("")

    def slow(self, phase: str, seconds: float = 0.0) -> None:
        """Make a phase of the starts to come slow."""
        (self.folder / "slow.json").write_text(json.dumps([phase, seconds]))

    def steps(self, worker: str) -> list[tuple[int, float]]:
        """Return the process and the time of each of a worker's steps so far."""
        path = self.folder / f"{worker}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), float(at)) for pid, _, at in map(str.split, lines)]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a trainer."""
        own = {
            "TORCHLOOM_JOIN": str(self.weaver.state / "join.json"),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "RUST_LOG": "error",
        }
        return os.environ | own | more

    def spawn(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process with its output in a file of its name."""
        with (self.folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                command,
                env=self.environment(**environment),
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, worker: str, slow: str, slow_s: float) -> tuple[float, set[int]]:
        """Kill a worker; return when, and the processes whose steps no longer count."""
        self.slow(slow, slow_s)
        before = {pid for one in self.all_workers for pid, _ in self.steps(one)}
        pid = self.steps(worker)[-1][0]
        at_s = time.time()
        os.kill(pid, signal.SIGKILL)
        self.after_kill(worker, slow, slow_s)
        return at_s, before

    @property
    def all_workers(self) -> tuple[str, ...]:
        """Return all workers of the job."""
        return self.workers

    def after_kill(self, worker: str, slow: str, slow_s: float) -> None:
        """Do what the launcher does not do by itself."""

    def end(self) -> None:
        """Kill the whole job."""
        raise NotImplementedError


class Torchrun(Job):
    """Two ranks under one torchrun: all start again when one has failed."""

    framework = "torchrun"
    workers = ("g0-0", "g0-1")

    def __init__(self, folder: Path, weaver: Weaver) -> None:
        super().__init__(folder, weaver)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "1000", str(TRAINER), str(folder)]
        self._process = self.spawn("torchrun", command)

    def end(self) -> None:
        """Kill the whole job."""
        kill_tree(self._process)


class Torchft(Job):
    """Two groups of one rank; this process starts a killed one again, as a launcher does."""

    framework = "torchft"
    workers = ("g0-0", "g1-0")

    def __init__(self, folder: Path, weaver: Weaver, port: int) -> None:
        super().__init__(folder, weaver)
        self._port = port
        self._groups: dict[str, subprocess.Popen[bytes]] = {}
        for worker in self.workers:
            self._start(worker)

    def _start(self, worker: str) -> None:
        command = [sys.executable, str(TRAINER), str(self.folder)]
        command += ["--lighthouse", f"http://127.0.0.1:{self._port}"]
        group = worker.partition("-")[0]
        self._groups[worker] = self.spawn(worker, command, TORCHLOOM_GROUP=group, RANK="0")

    def after_kill(self, worker: str, slow: str, slow_s: float) -> None:
        """Start the group again."""
        self._groups[worker].wait()
        if slow == "relaunch":
            time.sleep(slow_s)
        self._start(worker)

    def end(self) -> None:
        """Kill the whole job."""
        for process in self._groups.values():
            kill_tree(process)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait, and exit with one line after two minutes."""
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until_s:
            sys.exit(f"no {what} within {DEADLINE_S:g} s")
        time.sleep(0.05)


def play(
    job: Job, plan: list[tuple[str, str]], slow_s: float, advance: Callable[[], None]
) -> list[Kill]:
    """Kill by plan, pairs of worker and slow phase."""
    kills = []
    for worker, slow in plan:
        begin = {one: len(job.steps(one)) for one in job.workers}
        wait_until(lambda begin=begin: all(len(job.steps(w)) > n for w, n in begin.items()), "step")
        time.sleep(BETWEEN_S)
        at_s, before = job.kill(worker, slow, slow_s)
        concerned = job.workers if job.framework == "torchrun" else (worker,)

        def firsts(
            concerned: tuple[str, ...] = concerned, before: set[int] = before
        ) -> list[float]:
            news = ([at for pid, at in job.steps(one) if pid not in before] for one in concerned)
            return [times[0] for times in news if times]

        wait_until(lambda: len(firsts()) == len(concerned), f"recovery of {worker}")  # noqa: B023
        kills.append(Kill(job.framework, slow, worker, at_s, max(firsts())))
        advance()
    time.sleep(BETWEEN_S)
    return kills


def observed(
    framework: str,
    plan: list[tuple[str, str]],
    slow_s: float,
    advance: Callable[[], None],
    folder: Path,
) -> list[Kill]:
    """Play one job beside a Weaver, and return its kills with their recoveries."""
    folder.mkdir()
    weaver, port = Weaver(folder), lasting_port("127.0.0.1")
    config = "[run]\nname = 'run'\n[weaver]\nstate_dir = 'state'\n"
    lighthouse = f"[lighthouse]\nhost = '127.0.0.1'\nport = {port}\nstatus_port = 0\n"
    (folder / "torchloom.toml").write_text(config + lighthouse * (framework == "torchft"))
    asyncio.run(weaver.start())
    job = Torchrun(folder, weaver) if framework == "torchrun" else Torchft(folder, weaver, port)
    try:
        kills = play(job, plan, slow_s, advance)
    finally:
        job.end()
        weaver.end()
    found = recorded_recoveries(run_folder(weaver.state, "run"))
    for kill in kills:
        near = [one for one in found if abs(one.lost_ns / 1e9 - kill.at_s) < 1.0]
        kill.recovery = near[0] if near else None
    return kills


def shown(kills: list[Kill]) -> Table:
    """Return the kills as a table."""
    table = Table(title="20 kills" if len(kills) == 20 else f"{len(kills)} kills")
    for name in (
        "job",
        "killed",
        "slow phase",
        "measured, s",
        "sum, s",
        "difference",
        "longest",
        "others stood still, s",
    ):
        table.add_column(name, justify="right" if name.endswith(("s", "difference")) else "left")
    for kill in kills:
        one = kill.recovery
        still = "" if one is None or one.stood_still_s is None else f"{one.stood_still_s:.1f}"
        table.add_row(
            kill.framework,
            kill.worker,
            kill.slow,
            f"{kill.measured_s:.2f}",
            f"{sum(one.phases.values()):.2f}" if one else "-",
            f"{kill.difference:+.2%}",
            (one.longest if one else "none") + ("" if kill.is_right else "  WRONG"),
            still,
        )
    return table


def plot(kills: list[Kill], path: Path) -> None:
    """Draw a bar for each kill, its phases beside each other, and a mark at the measured time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.32 * len(kills) + 1.6), layout="constrained")
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    left = [0.0] * len(kills)
    for number, phase in enumerate(PHASES):
        widths = [one.recovery.phases.get(phase, 0.0) if one.recovery else 0.0 for one in kills]
        if any(widths):
            axes.barh(range(len(kills)), widths, left=left, color=colours[number], label=phase)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    axes.plot([one.measured_s for one in kills], range(len(kills)), "k|", ms=14, label="measured")
    axes.set_yticks(range(len(kills)), [f"{one.framework}, slow {one.slow}" for one in kills])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the kill")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def main() -> int:
    """Play both jobs, print the table and write the plot; status 1 if a kill is not as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two kills of each job")
    parser.add_argument("--slow-s", type=float, default=20.0, help="seconds of the slow phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", choices=[*SLOW], help="only this one")
    parser.add_argument("--plot", type=Path, default=HERE / "recoveries.png")
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    plans = {}
    for framework in [options.job] if options.job else SLOW:
        phases = chosen.sample(SLOW[framework] * 2, 10)
        workers = chosen.sample(("g0-0", "g0-1" if framework == "torchrun" else "g1-0") * 5, 10)
        plans[framework] = list(zip(workers, phases, strict=True))[: 2 if options.quick else None]
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        for framework, plan in plans.items():
            task = progress.add_task(f"{framework}: kills", total=len(plan))
            advance = partial(progress.advance, task)
            play_folder = Path(folder, framework)
            kills += observed(framework, plan, options.slow_s, advance, play_folder)
    console.print(shown(kills))
    console.print(describe(), markup=False)
    plot(kills, options.plot)
    wrong = sum(not one.is_right for one in kills)
    console.print(f"{len(kills) - wrong} of {len(kills)}: sum within {BOUND:.0%}, slow phase named")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
