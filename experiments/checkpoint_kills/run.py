"""Kill a job's processes at random moments of its saves, and resume it: nothing good is lost."""

import argparse
import collections
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.progress import Progress
from rich.table import Table

from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.cli.capability import console
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.nodes import memory_folder

TRAINER = str(Path(__file__).with_name("trainer.py"))
RANKS, DEADLINE_S = 2, 120.0
STEPS, LAST = 3000, 1500
"""Steps of the undisturbed run; past ``LAST`` a run begins anew, so that all can be compared."""
ENDS_S = {"ddp": 30.0, "fsdp": 30.0, "torchft": 90.0}
"""Time to end for the others of a killed rank: a group waits for torchft's quorum until SIGKILL."""
VICTIMS = ("rank", "writer", "node store", "node", "job")
PACKAGES = {"writer": "checkpoint.writer", "node store": "checkpoint.node_store"}


class Job:
    """A torchrun job of two ranks, each on a node of its own; kills are by SIGKILL."""

    def __init__(self, folder: Path, remote: str, wrap: str, lighthouse: str) -> None:
        self.folder, self.wrap, self.lighthouse = folder, wrap, lighthouse
        self.places = [str(folder / "path"), remote]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, journal: str, *options: str) -> None:
        """Start all ranks, with a journal each."""
        words = [self.places[0], str(self.folder / journal), "--wrap", self.wrap]
        words += ["--lighthouse", self.lighthouse, *options]
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *run, TRAINER, *words],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    def resume(self, journal: str) -> None:
        """Start with all tiers."""
        self.start(journal, "--remote", self.places[1])

    def journal(self, name: str, rank: int = 0) -> list[str]:
        """Return a rank's complete lines."""
        path = self.folder / f"{name}.{rank}"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def wait(self, name: str, lines: int) -> None:
        """Wait until both ranks have written so many lines."""
        end_s = time.monotonic() + DEADLINE_S
        while min(len(self.journal(name, rank)) for rank in range(RANKS)) < lines:
            if time.monotonic() > end_s or (self.process and self.process.poll() is not None):
                tail = (self.folder / "log").read_text()[-3000:]
                raise RuntimeError(f"{name}: no {lines} lines after {DEADLINE_S:g} s\n{tail}")
            time.sleep(0.01)

    def kill(self, victim: str, rank: int) -> None:
        """Kill one process, a node's processes with its memory, or all."""
        trainers = self.trainers()
        if victim == "rank":
            trainers[rank].kill()
        elif victim in PACKAGES:
            for process in beside(trainers[rank].pid, PACKAGES[victim], self.folder):
                process.kill()
        elif victim == "node":
            node = f"n{rank}"
            trainers[rank].kill()
            for package in PACKAGES.values():
                for process in beside(trainers[rank].pid, package, self.folder):
                    process.kill()
            shutil.rmtree(memory_folder(storage_at(self.places[0]), node), ignore_errors=True)
        else:
            self.end()

    def saves_again(self, name: str, victim: str) -> list[str]:
        """Return what is wrong if no checkpoint is complete after a process was killed."""
        storage = storage_at(self.places[0])
        before = set(complete_folders(storage))
        end_s = time.monotonic() + DEADLINE_S
        while not set(complete_folders(storage)) - before:
            if time.monotonic() > end_s:
                return [f"{name}: no checkpoint is complete after the {victim} was killed"]
            time.sleep(0.02)
        return []

    def trainers(self) -> list[psutil.Process]:
        """Return the ranks' processes in order."""
        assert self.process is not None
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                variables = child.environ()
                if TRAINER in child.cmdline():
                    found[int(variables["RANK"])] = child
            except (psutil.Error, KeyError):
                continue
        return [found[rank] for rank in sorted(found)]

    def end(self) -> None:
        """Kill the launcher and all ranks."""
        if self.process is None:
            return
        try:
            every = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            every = []
        for child in every:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.kill()
        self.process.wait()

    def has_ended(self, within_s: float) -> bool:
        """Return whether the launcher ends in this time."""
        assert self.process is not None
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_lighthouse() -> tuple[subprocess.Popen[bytes], str]:
    """Start torchft's lighthouse, which waits for both groups; return its address, too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("torchft_lighthouse"))
    words = ["--bind", f"[::]:{port}", "--min_replicas", str(RANKS), "--join_timeout_ms", "1000"]
    return subprocess.Popen(
        [program, *words], stderr=subprocess.DEVNULL
    ), f"http://127.0.0.1:{port}"


def beside(trainer: int, package: str, folder: Path) -> list[psutil.Process]:
    """Return the processes of a package that serve a trainer's rank."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if package in words and process.environ().get("TORCHLOOM_SIDECAR_OF") == str(trainer):
                found.append(process)
        except psutil.Error:
            continue
    return found


def losses(lines: list[str]) -> dict[int, str]:
    """Return the loss of each step."""
    return {int(line.split()[1]): line.split()[2] for line in lines if line.startswith("step")}


def newest_whole(place: str) -> int:
    """Return the step of the newest checkpoint of a place whose bytes are all right; -1: none."""
    storage = storage_at(place)
    for folder in complete_folders(storage):
        try:
            for _ in Checkpoint([storage], str(folder)).verify():
                pass
        except CheckpointError as error:
            raise RuntimeError(f"a complete checkpoint is damaged: {error}") from None
        return folder.step
    return -1


def main() -> int:
    """Kill, resume, compare; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--wrap", choices=["ddp", "fsdp", "torchft"], default="ddp")
    parser.add_argument("--remote", default="", help="a URL; a folder of its own by default")
    parser.add_argument("--quick", action="store_true", help="10 kills")
    options = parser.parse_args()
    kills, rng = 10 if options.quick else options.kills, random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="torchloom-kills-"))
    process, lighthouse = start_lighthouse() if options.wrap == "torchft" else (None, "")
    job = Job(folder, options.remote or str(folder / "remote"), options.wrap, lighthouse)
    counted: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    expected = [dict[int, str]() for _ in range(RANKS)]
    try:
        with Progress(console=console()) as progress:
            task = progress.add_task("undisturbed", total=kills)
            job.start("undisturbed", "--no-saves", "--steps", str(STEPS))
            assert job.process is not None
            if job.process.wait() != 0:
                raise RuntimeError((folder / "log").read_text()[-3000:])
            expected = [losses(job.journal("undisturbed", rank)) for rank in range(RANKS)]
            forget(job)
            for number in range(kills):
                name = f"run{number}"
                victim, rank = rng.choice(VICTIMS), rng.randrange(RANKS)
                progress.update(task, description=f"{number + 1}: {victim} of rank {rank}")
                before = newest_whole(job.places[0])
                if before > LAST:
                    before = -1
                    forget(job)
                job.resume(name)
                job.wait(name, rng.randrange(3, 60))
                time.sleep(rng.uniform(0.0, 0.2))
                job.kill(victim, rank)
                if victim in PACKAGES:
                    job.wait(name, len(job.journal(name)) + 20)
                    problems += job.saves_again(name, victim)
                elif not job.has_ended(ENDS_S[options.wrap]):
                    problems.append(f"{name}: did not end after its {victim} was killed")
                job.end()
                problems += judge(job, name, before, expected)
                counted[victim] += 1
                progress.advance(task)
            job.resume("last")
            job.wait("last", 3)
            job.end()
            problems += judge(job, "last", newest_whole(job.places[0]), expected)
    finally:
        job.end()
        if process is not None:
            process.kill()
        for rank in range(RANKS):
            end_store(memory_folder(storage_at(job.places[0]), f"n{rank}"))
    table = Table("killed", "times", box=None)
    for victim in VICTIMS:
        table.add_row(victim, str(counted[victim]))
    console().print(table)
    for problem in problems:
        console().print(problem, markup=False)
    text = f"{sum(counted.values())} kills, seed {options.seed}, {options.wrap}: "
    console().print(
        text + (f"{len(problems)} problems, see {folder}" if problems else "0 problems")
    )
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(problems))


def judge(job: Job, name: str, before: int, expected: list[dict[int, str]]) -> list[str]:
    """Return what is wrong with a run that resumed where ``before`` was stored at least."""
    found = []
    begun = {int(job.journal(name, rank)[0].split()[1]) for rank in range(RANKS)}
    must_be_same = job.wrap != "torchft"  # whose groups copy the newest state from each other
    if (must_be_same and len(begun) > 1) or min(begun) < before:
        found.append(f"{name}: began at {sorted(begun)}, step {before} was stored in path")
    for rank in range(RANKS):
        for step, loss in losses(job.journal(name, rank)).items():
            if step in expected[rank] and expected[rank][step] != loss:
                found.append(
                    f"{name}: rank {rank} has the loss {loss} at step {step}, undisturbed it is "
                    f"{expected[rank][step]}"
                )
                break
    return found


def forget(job: Job) -> None:
    """Remove all checkpoints of all tiers, and the stores of the nodes."""
    for place in job.places:
        storage = storage_at(place)
        for name in storage.folders():
            storage.remove(name)
    for rank in range(RANKS):
        end_store(memory_folder(storage_at(job.places[0]), f"n{rank}"))


def end_store(folder: Path) -> None:
    """End a node's store, and remove its memory."""
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                process.kill()
        except psutil.Error:
            continue
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
