"""The demo's torchrun job: three ranks, each on a node of its own, whose processes are killed."""

import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from torchloom_core.checkpoints.layout import MANIFEST, Folder, read_folder, tensors_file
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.demos.checkpoints.script import EVERY_S, Fault
from torchloom_core.demos.marks import VARIABLE, own_mark
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE

_JOB = "job"
_NODE = "TORCHLOOM_NODE"
_MOST_RESTARTS = 50


class Job:
    """A job in a demo's folder.

    Attributes
    ----------
    nodes : list of str
        The node of each rank now.
    ranks : list of StepLog
        The steps of each rank.
    """

    def __init__(self, processes: Processes, training: Training) -> None:
        self._processes, self._training = processes, training
        self.nodes = [place.node for place in training.places]
        self.ranks = list(processes.logs.values())
        self._numbered = len(self.nodes)
        self._places = {name: processes.folder / name for name in (PATH, REMOTE)}

    def start(self) -> None:
        """Start all ranks; torchrun starts them again when one has failed."""
        self._write_nodes()
        words = [f"--step-ms={self._training.step_ms}", f"--steps={self._training.steps}"]
        words += [f"--path={self._places[PATH]}", f"--every-s={EVERY_S[PATH]}"]
        words += [f"--remote={self._places[REMOTE]}", f"--remote-every-s={EVERY_S[REMOTE]}"]
        words += [f"--memory-every-s={EVERY_S[MEMORY]}"]
        join = self._processes.state_dir / "join.json"
        self._processes.trainers[_JOB] = self._spawn(_JOB, "g0", join, *words)

    def start_undisturbed(self, steps: int) -> subprocess.Popen[bytes]:
        """Start a job with the same seed that takes so many steps, without pause or saves."""
        nowhere = self._processes.folder / "unused"
        places = (f"--path={nowhere}", f"--remote={nowhere}")
        words = (*places, "--undisturbed", f"--steps={steps}")
        return self._spawn("undisturbed", "undisturbed", nowhere, *words)

    def _spawn(self, name: str, journal: str, join: Path, *words: str) -> subprocess.Popen[bytes]:
        run = ["torch.distributed.run", "--standalone", f"--max-restarts={_MOST_RESTARTS}"]
        run += [f"--nproc-per-node={len(self.nodes)}", "-m", "torchloom_threadlet.demo_checkpoints"]
        own = [f"--journal={self._processes.folder / journal}", f"--nodes={self._nodes_file}"]
        own += [f"--seed={self._training.seed}"]
        environment = {
            "TORCHLOOM_JOIN": str(join),
            "TORCHLOOM_HEARTBEAT_S": str(self._training.heartbeat_s),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        return self._processes.spawn(name, [sys.executable, "-m", *run, *own, *words], environment)

    @property
    def has_ended(self) -> bool:
        """Whether torchrun has ended."""
        return self._processes.trainers[_JOB].poll() is not None

    def pids(self) -> set[int]:
        """Return all processes of ranks so far."""
        return {row["pid"] for log in self.ranks for row in log.steps}

    def leave(self) -> None:
        """Have all ranks save and leave, by SIGTERM to one of them."""
        with suppress(ProcessLookupError):
            psutil.Process(self.ranks[0].steps[-1]["pid"]).send_signal(signal.SIGTERM)

    def complete(self) -> dict[str, set[Folder]]:
        """Return the complete checkpoints of each tier: all ranks' parts are there, and listed."""
        memory = {Path(log.steps[-1]["memory"]) for log in self.ranks if log.steps}
        places = {MEMORY: memory, **{name: {path} for name, path in self._places.items()}}
        needed = {MANIFEST, *(tensors_file(rank) for rank in range(len(self.ranks)))}
        return {tier: whole_in(paths, needed) for tier, paths in places.items()}

    def fail(self, fault: Fault) -> None:
        """Kill what fails with SIGKILL; lost nodes lose their memory, and spare ones replace them.

        A restarted rank finds the node that it is on in a file, as from a scheduler.
        """
        rows = [self.ranks[rank].steps[-1] for rank in fault.ranks]
        lost = {row["pid"] for row in rows}
        if fault.nodes:
            nodes = {row["node"] for row in rows}
            for rank in fault.ranks:
                self.nodes[rank] = f"node-{self._numbered}"
                self._numbered += 1
            self._write_nodes()
            lost |= set(_processes_on(nodes))
        for pid in lost:
            with suppress(psutil.Error):
                psutil.Process(pid).kill()
        if fault.nodes:
            for row in rows:
                shutil.rmtree(row["memory"], ignore_errors=True)

    @property
    def _nodes_file(self) -> Path:
        return self._processes.folder / "nodes"

    def _write_nodes(self) -> None:
        racks = [place.rack for place in self._training.places]
        lines = [f"{node} {rack}\n" for node, rack in zip(self.nodes, racks, strict=True)]
        self._nodes_file.write_text("".join(lines), encoding="utf-8")


def whole_in(paths: set[Path], needed: set[str]) -> set[Folder]:
    """Return the checkpoints of which these folders together have the needed files."""
    files: dict[Folder, set[str]] = defaultdict(set)
    for storage in map(LocalFolder, paths):
        for folder in filter(None, map(read_folder, storage.folders())):
            files[folder] |= set(storage.files(str(folder)))
    return {folder for folder, own in files.items() if needed <= own}


def _processes_on(nodes: set[str]) -> Iterator[int]:
    """Yield what runs beside the trainers of these nodes: sidecar, writer, store."""
    for process in psutil.process_iter(["environ"]):
        variables = process.info["environ"] or {}
        if variables.get(VARIABLE) == own_mark() and variables.get(_NODE) in nodes:
            yield process.pid
