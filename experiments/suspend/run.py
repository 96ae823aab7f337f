"""Measure how long a run of two ranks takes to be suspended and resumed, at each depth.

``python experiments/suspend/run.py`` prints one row for each depth.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

RANKS, STEPS, SUSPENDED_S = 2, 60, 5.0
WAYS = (
    ("frozen", False),
    ("parked", False),
    ("parked", True),
    ("stored", True),
)
"""Depths, and whether other processes go on."""

_TRAINER = str(Path(__file__).with_name("trainer.py"))
_CLI = (sys.executable, "-m", "torchloom_core.cli")


class Job:
    """The ranks of a run in a folder, without a Weaver if it is not ``linked``."""

    def __init__(self, folder: Path, *, linked: bool) -> None:
        self.folder, self.journal, self._linked = folder, folder / "journal", linked

    def start(self) -> subprocess.Popen[bytes]:
        """Start the ranks."""
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if self._linked:
            own["TORCHLOOM_JOIN"] = str(self.folder / "state" / "join.json")
        words = [_TRAINER, str(self.folder / "checkpoints"), str(self.journal), str(STEPS)]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        return subprocess.Popen([sys.executable, *launcher, *words], env=os.environ | own)

    def lines(self) -> list[list[str]]:
        """Return the lines of rank 0's journal, as words."""
        path = self.journal.with_suffix(".0")
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def result(self) -> list[list[str]]:
        """Return the losses and the sum of the weights, without times."""
        return [[*line[:2], *line[3:]] for line in self.lines()]


def until(what: Callable[[], object]) -> None:
    """Wait for a condition."""
    end_s = time.monotonic() + 300
    while not what():
        if time.monotonic() > end_s:
            raise TimeoutError("not true after 300 s")
        time.sleep(0.05)


def command(folder: Path, *words: str) -> str:
    """Run a command of torchloom's, and return what it printed."""
    done = subprocess.run([*_CLI, *words], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


def training(folder: Path) -> int:
    """Return how many workers train, as the Weaver knows."""
    try:
        workers = json.loads(command(folder, "status", "--json"))["workers"]
    except ValueError:  # it has just started
        return 0
    return [worker["state"] for worker in workers].count("training")


def measure(folder: Path, depth: str, *, elsewhere: bool) -> tuple[float, float, list[list[str]]]:
    """Suspend a run and resume it; return the seconds of both, and its result."""
    (folder / "torchloom.toml").write_text("[weaver]\nstate_dir = 'state'\n")
    weaver = subprocess.Popen([*_CLI, "weaver"], cwd=folder, stdout=subprocess.DEVNULL)
    job = Job(folder, linked=True)
    try:
        until((folder / "state" / "join.json").exists)
        ranks = job.start()
        until(lambda: training(folder) == RANKS)
        begun_s = time.time()
        text = command(folder, "suspend", "--depth", depth)
        if "done" not in text:
            raise RuntimeError(text)
        suspend_s = time.time() - begun_s
        time.sleep(SUSPENDED_S)
        steps, begun_s = len(job.lines()), time.time()
        if elsewhere:
            before, ranks = ranks, job.start()
            before.wait(300)
        else:
            command(folder, "resume")
        until(lambda: len(job.lines()) > steps)
        resume_s = float(job.lines()[steps][2]) - begun_s
        ranks.wait(300)
        return suspend_s, resume_s, job.result()
    finally:
        weaver.send_signal(signal.SIGINT)
        weaver.wait()


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        alone = Job(Path(name), linked=False)
        alone.start().wait(600)
        expected = alone.result()
    table = Table("depth", "goes on in", "suspend s", "resume s", "same to the bit", box=None)
    for depth, elsewhere in WAYS:
        with tempfile.TemporaryDirectory() as name:
            suspend_s, resume_s, found = measure(Path(name), depth, elsewhere=elsewhere)
        where = "other processes" if elsewhere else "the same"
        same = "yes" if found == expected else "no"
        table.add_row(depth, where, f"{suspend_s:.2f}", f"{resume_s:.2f}", same)
    Console().print(table)


if __name__ == "__main__":
    main()
