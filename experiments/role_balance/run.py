"""Compare ``role_balance`` with every fixed split of six nodes, as responses get longer."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from experiments.rlhf.processes import until
from experiments.role_balance.settings import GENERATE_S, LIGHTHOUSE, TRAIN_S, write
from torchloom_core.live.transport.ports import lasting_port

NODES = 6
TRAIN, SHORT, LONG = 0.8, 0.4, 1.6
"""Seconds of a device: a trainer's for a rollout, a rollout worker's for a short and a long one."""

_CONFIG = """[weaver]
state_dir = "state"
[arbiter]
cooldown_s = 10
max_in_motion_share = 0.5
[arbiter.breaker]
max_moved_share = 1.0
[policies.role_balance]
roles = ["trainer", "rollout"]
mode = "{mode}"
window_s = {window_s}
dwell_s = {dwell_s}
move_s = 10
horizon_s = 600
"""


def configured(*, mode: str, window_s: float, dwell_s: float) -> str:
    """Return the Weaver's config."""
    return _CONFIG.format(mode=mode, window_s=window_s, dwell_s=dwell_s)


class Arm(msgspec.Struct):
    """What a split did: samples that were learned a second, in each phase and in all.

    ``trainers``: nodes that begin as trainers. ``ends_with``: the trainers at the end.
    """

    name: str
    trainers: int
    short: float = 0.0
    long: float = 0.0
    both: float = 0.0
    ends_with: int = 0
    moves: int = 0


class Job:
    """A Weaver, a queue, a lighthouse, and the agents of six nodes."""

    def __init__(self, folder: Path, trainers: int, config: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "torchloom.toml").write_text(config)
        lighthouse = lasting_port("127.0.0.1")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                (str(Path(__file__).parents[2]), *filter(None, sys.path))
            ),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHLOOM_JOIN": str(folder / "state" / "join.json"),
            "TORCHLOOM_ROLLOUT_QUEUE": f"127.0.0.1:{lasting_port('127.0.0.1')}",
        }
        write(folder, GENERATE_S, SHORT)
        write(folder, TRAIN_S, TRAIN)
        write(folder, LIGHTHOUSE, f"http://127.0.0.1:{lighthouse}")
        self._start("weaver", "weaver")
        until((folder / "state" / "join.json").exists)
        bind = self._environment["TORCHLOOM_ROLLOUT_QUEUE"]
        self._start("queue", "rollout-queue", "--bind", bind, "--max-batches", "8")
        self._start(
            "lighthouse",
            *("lighthouse", "--min-replicas", "1", "--bind", f"127.0.0.1:{lighthouse}"),
            *("--status-bind", "", "--join-timeout-ms", "5000"),
        )
        python = f"{sys.executable} -m experiments.role_balance."
        for number in range(NODES):
            first = "trainer" if number < trainers else "rollout"
            self._start(
                f"n{number}",
                *("node-agent", "--node", f"n{number}", "--start", first),
                *("--role", f"trainer={python}trainer", "--role", f"rollout={python}rollout"),
            )

    def samples(self) -> list[float]:
        """Return when each sample was learned, seconds since the epoch."""
        logs = self.folder.glob("samples-*.log")
        return sorted(float(line) for log in logs for line in log.read_text().split("\n")[:-1])

    def trainers(self) -> int:
        """Return how many groups train now, by the status of the Weaver."""
        rows = [line.split() for line in self.command("status").splitlines()]
        return sum("trainer" in row[1:2] and "training" in row for row in rows)

    def moves(self) -> int:
        """Return how many nodes got another role."""
        shown = self.command("trajectory", "show", "--kind", "outcome")
        return shown.count("its nodes start role")

    def command(self, *words: str) -> str:
        """Return what ``torchloom`` prints."""
        return subprocess.run(
            [sys.executable, "-m", "torchloom_core.cli", *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    def end(self) -> None:
        """End all processes, the Weaver last."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torchloom_core.cli", *words],
                    cwd=self.folder,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                )
            )


def play(arm: Arm, folder: Path, phase_s: float, config: str) -> Arm:
    """Train through both phases, after all nodes work."""
    job = Job(folder, arm.trainers, config)
    try:
        until(lambda: len(list(folder.glob("samples-*.log"))) == arm.trainers)
        until(lambda: len(job.samples()) >= 2 * NODES)
        began_s = time.time()
        time.sleep(phase_s)
        write(folder, GENERATE_S, LONG)
        time.sleep(phase_s)
        samples = [at_s - began_s for at_s in job.samples()]
        arm.short = sum(0 <= at_s < phase_s for at_s in samples) / phase_s
        arm.long = sum(phase_s <= at_s < 2 * phase_s for at_s in samples) / phase_s
        arm.both = (arm.short + arm.long) / 2
        arm.ends_with, arm.moves = job.trainers(), job.moves()
    finally:
        job.end()
    return arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase-s", type=float, default=120.0)
    parser.add_argument("--window-s", type=float, default=12.0)
    parser.add_argument("--dwell-s", type=float, default=15.0)
    parser.add_argument("--static", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="role-balance-"))
    print(f"Logs: {folder}", flush=True)
    arms = [Arm("role_balance", 3)]
    arms += [
        Arm(f"{number} trainers, {NODES - number} rollouts", number) for number in options.static
    ]
    for arm in arms:
        mode = "act" if arm.name == "role_balance" else "shadow"
        config = configured(mode=mode, window_s=options.window_s, dwell_s=options.dwell_s)
        play(arm, folder / arm.name.split(",")[0].replace(" ", "-"), options.phase_s, config)
        print(json.dumps(msgspec.to_builtins(arm)), flush=True)
    if options.out:
        options.out.write_text(json.dumps(msgspec.to_builtins(arms), indent=1) + "\n")
    show(arms)


def show(arms: list[Arm]) -> None:
    """Print the table, and the ratios to the worst and the best split."""
    table = Table(title="Samples learned a second")
    for name in ("split", "short responses", "long responses", "both", "moves"):
        table.add_column(name)
    for arm in arms:
        rates = (f"{rate:.2f}" for rate in (arm.short, arm.long, arm.both))
        table.add_row(arm.name, *rates, str(arm.moves))
    Console(width=100).print(table)
    balanced, *fixed = (arm.both for arm in arms)
    if fixed:
        worst, best = balanced / min(fixed), balanced / max(fixed)
        print(f"role_balance: {worst:.2f} times the worst fixed split, {best:.2f} times the best")


if __name__ == "__main__":
    main()
