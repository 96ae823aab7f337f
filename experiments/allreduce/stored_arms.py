"""Store finished arms, and reuse them if settings, code and versions are unchanged."""

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

import torchloom_core
import torchloom_policies
import torchloom_threadlet
from experiments.allreduce.arm import Arm, Played, Settings, read_journal
from experiments.allreduce.schedule import Schedule

_NAME = "played.json"
_PACKAGES = (torchloom_core, torchloom_threadlet)
_LAB = ("arm.py", "model.py", "schedule.py", "trainer.py")


class _StoredArm(msgspec.Struct):
    key: str
    played: Played
    lines: list[int]
    """Number of lines of each rank's journal."""


def key_of(arm: Arm, seed: int, schedule: Schedule, settings: Settings) -> str:
    """Return the hash of everything that determines an arm, including its code.

    The code of the policies counts only if the arm has one.
    """
    code = hashlib.sha256()
    packages = (*_PACKAGES, torchloom_policies) if arm.policy else _PACKAGES
    sources = [path for package in packages for path in Path(package.__path__[0]).rglob("*.py")]
    for path in (*sorted(sources), *(Path(__file__).with_name(name) for name in _LAB)):
        code.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = (arm, seed, schedule, settings, str(torch.__version__), code.hexdigest())
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def options_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of a run as its results store them: files by their names alone."""
    return {
        name: value.name if isinstance(value, Path) else str(value)
        for name, value in vars(args).items()
    }


def store(folder: Path, key: str, played: Played) -> None:
    """Record that an arm is finished; its journals are stored already."""
    stored = _StoredArm(key, replace(played, rows=[]), [len(rows) for rows in played.rows])
    (folder / _NAME).write_bytes(msgspec.json.encode(stored) + b"\n")


def load(folder: Path, key: str, ranks: int) -> Played | None:
    """Return the result of an arm; None if it is incomplete, or has another key."""
    try:
        found = msgspec.json.decode((folder / _NAME).read_bytes(), type=_StoredArm)
        rows = [read_journal(folder, rank) for rank in range(ranks)]
    except (OSError, ValueError):
        return None
    whole = found.lines == [len(each) for each in rows] and found.key == key
    return replace(found.played, rows=rows) if whole else None
