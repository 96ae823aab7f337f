"""What is kept of a run, and arms taken again where nothing that they come of has changed."""

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


class _Kept(msgspec.Struct):
    key: str
    played: Played
    lines: list[int]
    """Of each rank's journal."""


def key_of(arm: Arm, seed: int, schedule: Schedule, settings: Settings) -> str:
    """Return the hash of all that an arm comes of, the code that is run in it too.

    That of the policies is run only where the arm has one.
    """
    code = hashlib.sha256()
    packages = (*_PACKAGES, torchloom_policies) if arm.policy else _PACKAGES
    sources = [path for package in packages for path in Path(package.__path__[0]).rglob("*.py")]
    for path in (*sorted(sources), *(Path(__file__).with_name(name) for name in _LAB)):
        code.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = (arm, seed, schedule, settings, str(torch.__version__), code.hexdigest())
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def said(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of a run as its results keep them: files by their names alone."""
    return {
        name: value.name if isinstance(value, Path) else str(value)
        for name, value in vars(args).items()
    }


def keep(folder: Path, key: str, played: Played) -> None:
    """Write down that an arm was played to its end; its journals are there already."""
    kept = _Kept(key, replace(played, rows=[]), [len(rows) for rows in played.rows])
    (folder / _NAME).write_bytes(msgspec.json.encode(kept) + b"\n")


def kept(folder: Path, key: str, ranks: int) -> Played | None:
    """Return what came of an arm; nothing where it is not whole, or has another key."""
    try:
        found = msgspec.json.decode((folder / _NAME).read_bytes(), type=_Kept)
        rows = [read_journal(folder, rank) for rank in range(ranks)]
    except (OSError, ValueError):
        return None
    whole = found.lines == [len(each) for each in rows] and found.key == key
    return replace(found.played, rows=rows) if whole else None
