"""Play one arm: a Weaver, its lighthouse and the ranks, on links that a schedule shapes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.allreduce.model import POWERSGD_RANK, TOPK_SHARE, Workload
from experiments.allreduce.schedule import Schedule, play
from experiments.allreduce.trainer import cpu_s
from experiments.chaos import record
from experiments.chaos.processes import spawn
from experiments.chaos.record import Row
from torchloom_core.demos.bandwidth.namespaces import CONTROL, DATA, Lab

TUNER = "tuner"
LIGHTHOUSE_PORT = 29510
READY_S = 90.0
ENDING_S = 240.0
"""Time for the last steps, and for evaluating the stored weights."""

POLL_S = 0.1
CONFIG = """
[run]
name = "lab"

[weaver]
state_dir = "{state}"
tick_s = 0.5

[broker]
host = "{hub}"

[lighthouse]
host = "{hub}"
port = {port}
status_port = 0
min_replicas = {ranks}
heartbeat_timeout_s = 5.0

[arbiter]
min_groups = {ranks}
cooldown_s = 0

{policy}
"""


class ArmError(Exception):
    """An arm did not start, or did not continue."""


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison.

    Attributes
    ----------
    name : str
        A mode, or ``tuner``.
    mode : str
        Initial mode.
    policy : str
        Lines of the Weaver's config.
    """

    name: str
    mode: str
    policy: str = ""


@dataclass(frozen=True)
class Played:
    """The result of one arm and seed.

    Attributes
    ----------
    rows : list of list of dict
        The journal of each rank.
    began : list of float
        When each phase began, s since the first step.
    weaver_cpu_s : float
        Processor time of the Weaver, its broker and its lighthouse.
    """

    arm: str
    seed: int
    rows: list[list[Row]]
    began: list[float]
    weaver_cpu_s: float = 0.0

    def by_step(self) -> dict[int, list[Row]]:
        """Return all ranks' rows of each step."""
        return by_step(self.rows)

    def steps(self) -> list[Row]:
        """Return rank 0's steps."""
        return [row for row in self.rows[0] if row["event"] == "step"]

    def marks(self) -> list[tuple[float, float]]:
        """Return pairs of time and loss, in order of time."""
        return sorted(
            (row["t"], row["tried"]) for rank in self.rows for row in rank if "tried" in row
        )

    def control_share(self) -> float:
        """Return how much of one core Weaver, broker, lighthouse and all sidecars have used."""
        sidecars_s = sum(row.get("sidecar_cpu_s", 0.0) for rank in self.rows for row in rank)
        return (self.weaver_cpu_s + sidecars_s) / self.steps()[-1]["t"]

    def failed_steps(self) -> int:
        """Return how many steps some rank did not commit."""
        return sum(
            not row["committed"] for rank in self.rows for row in rank if row["event"] == "step"
        )


@dataclass(frozen=True)
class Settings:
    """The settings shared by all arms of a run."""

    workload: Workload
    topk_share: float = TOPK_SHARE
    powersgd_rank: int = POWERSGD_RANK
    mark_s: float = 5.0


def play_arm(
    lab: Lab, arm: Arm, seed: int, schedule: Schedule, settings: Settings, folder: Path
) -> Played:
    """Play an arm from its first step to the end of the schedule."""
    folder = folder.absolute()
    folder.mkdir(parents=True)
    lab.set_rates(schedule[0].rates)
    started: list[subprocess.Popen[bytes]] = []
    try:
        weaver = _start_weaver(lab, arm, folder)
        started.append(weaver)
        ranks = [_start_rank(lab, rank, arm, seed, schedule, settings, folder)
                 for rank in range(lab.ranks)]  # fmt: skip
        started += ranks
        begun_s = _begun_s(folder, ranks)
        began = play(schedule, lab, begun_s, alive=lambda: all(p.poll() is None for p in ranks))
        _await_end(ranks, folder)
        weaver_cpu_s = cpu_s(map(psutil.Process, lab.processes(None)))
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    rows = [read_journal(folder, rank) for rank in range(lab.ranks)]
    return Played(arm.name, seed, rows, began, weaver_cpu_s)


def _start_weaver(lab: Lab, arm: Arm, folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "torchloom.toml"
    config.write_text(
        CONFIG.format(
            state=folder / "state",
            hub=lab.hub_address,
            port=LIGHTHOUSE_PORT,
            ranks=lab.ranks,
            policy=arm.policy,
        )
    )
    command = [sys.executable, "-m", "torchloom_core.cli", "weaver", "--config", str(config)]
    weaver = spawn(folder, "weaver", lab.inside(None, command), os.environ)
    out = folder / "weaver.out"
    _wait_for(lambda: "is ready" in out.read_text(), [weaver], folder, "a Weaver that is ready")
    return weaver


def _start_rank(
    lab: Lab, rank: int, arm: Arm, seed: int, schedule: Schedule, settings: Settings, folder: Path
) -> subprocess.Popen[bytes]:
    options = {
        "rank": rank,
        "ranks": lab.ranks,
        "control": lab.address(rank, CONTROL),
        "data": lab.address(rank, DATA),
        "first": lab.address(0, CONTROL),
        "lighthouse": f"http://{lab.hub_address}:{LIGHTHOUSE_PORT}",
        "mode": arm.mode,
        "seed": seed,
        "seconds": schedule[-1].end_s,
        "mark_s": settings.mark_s,
        "topk_share": settings.topk_share,
        "powersgd_rank": settings.powersgd_rank,
        "out": folder,
        **asdict(settings.workload),
    }
    command = [sys.executable, "-m", "experiments.allreduce.trainer"]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {
        **os.environ,
        "TORCHLOOM_JOIN": str(folder / "state" / "join.json"),
        "TORCHLOOM_NODE": f"node-{rank}",
        "TORCHLOOM_LINK_ADDRESS": lab.address(rank),
        "RUST_LOG": "error",
        **lab.environment(),
    }
    return spawn(folder, f"rank{rank}", lab.inside(rank, command), environment)


def _begun_s(folder: Path, ranks: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return when rank 0's clock began, by ``time.monotonic``."""

    def begun() -> list[float]:
        journal = record.rows(folder / "rank0.jsonl")
        return [row["monotonic_s"] for row in journal if row["event"] == "begun"]

    _wait_for(begun, ranks, folder, "ranks that train")
    return begun()[0]


def _await_end(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    end = time.monotonic() + ENDING_S
    while any(process.poll() is None for process in ranks):
        if time.monotonic() > end:
            raise ArmError(f"need ranks that end within {ENDING_S:g} s; see {folder}")
        time.sleep(POLL_S)
    if any(process.returncode for process in ranks):
        raise ArmError(f"a rank has ended with {[p.returncode for p in ranks]}; see {folder}")


def _wait_for(
    what: Any, processes: Sequence[subprocess.Popen[bytes]], folder: Path, name: str
) -> None:
    end = time.monotonic() + READY_S
    while not what():
        if time.monotonic() > end or any(process.poll() is not None for process in processes):
            raise ArmError(f"need {name} within {READY_S:g} s; see {folder}")
        time.sleep(POLL_S)


def by_step(journals: Iterable[Iterable[Row]]) -> dict[int, list[Row]]:
    """Return the rows of each step, of all ranks' journals."""
    found: dict[int, list[Row]] = {}
    for journal in journals:
        for row in journal:
            if row["event"] == "step":
                found.setdefault(row["step"], []).append(row)
    return found


def read_journal(folder: Path, rank: int) -> list[Row]:
    """Return a rank's journal.

    Raises
    ------
    ValueError
        If a line is damaged.
    """
    journal = folder / f"rank{rank}.jsonl"
    rows = []
    for number, line in enumerate(journal.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or "event" not in row:
            raise ValueError(
                f"{journal}, line {number}: need a line of a rank's journal, was {line[:80]}"
            )
        rows.append(row)
    return rows
