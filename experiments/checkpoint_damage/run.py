"""Damage a checkpoint in every way, and look whether it is found and what is loaded instead.

``python experiments/checkpoint_damage/run.py [--flips 200] [--seed 1] [--quick]``
"""

import argparse
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from torchloom_core.checkpoints.layout import MANIFEST, Manifest, Shard, manifest_json
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.restore import restore
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.torchrun import attach

_DEADLINE_S = 120.0
_STEPS = (4, 9)
_HOUR_NS = 3600 * 10**9


def main() -> None:
    """Damage, load, and print a table; exit with status 1 if anything wrong was loaded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="20 flips")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        flips = 20 if options.quick else options.flips
        trial.fresh()
        found = [("none", _copies(1), trial.start(tiers=1))]
        found += [*flipped(trial, rng, flips), *cut(trial), *foreign(trial)]
        found += [clock(trial), lock(trial)]
    counts = Counter(found)
    table = Table("damage", "copies", "what a start does", "times", title=f"seed {options.seed}")
    for row in sorted(counts):
        table.add_row(*row, str(counts[row]))
    Console(width=110).print(table)
    sys.exit(any(what.startswith("WRONG") for _, _, what in counts))


class Trial:
    """A run's checkpoints at two steps in two places, and its state at both."""

    def __init__(self, folder: Path) -> None:
        self.good, self.here = folder / "good", folder / "here"
        self.states: dict[int, bytes] = {}
        parts = _parts(0)
        loom = attach()
        place = LocalFolder(self.good / "path")
        checkpoints = loom.checkpoints(*parts, path=place.path)
        for step in range(_STEPS[-1] + 3):
            _train(*parts)
            if step in _STEPS:
                checkpoints.save()
                self.states[step] = _digest(parts)
            loom.step(step)
            if step - 2 in _STEPS:  # the copy is handed over by then
                _wait(lambda: len(complete_folders(place)) == len(self.states))
        loom.close()
        shutil.copytree(place.path, self.good / "remote")
        self.newest = str(complete_folders(place)[0])

    def files(self) -> list[str]:
        """Return the names of the newest checkpoint's files."""
        return sorted(path.name for path in (self.good / "path" / self.newest).iterdir())

    def fresh(self) -> Path:
        """Return the newest checkpoint's folder in a fresh copy of both places."""
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.good, self.here)
        return self.here / "path" / self.newest

    def start(self, *, tiers: int, width: int = 32) -> str:
        """Return what a start loads from the first places."""
        places = [LocalFolder(self.here / tier) for tier in ("path", "remote")[:tiers]]
        sources = Sources(places[0], [[place] for place in places], places)
        parts = _parts(1, width)
        before = _digest(parts)
        try:
            restored = restore(sources, TrainingState(parts, {"loom": _Loop()}), SavingRanks())
        except CheckpointError as error:
            clean = "\n" not in str(error) and _digest(parts) == before
            return "refused in one line" if clean else "WRONG: changed, or no line"
        if restored is None:
            return "begins anew" if _digest(parts) == before else "WRONG: changed"
        step = restored.folder.step
        if _digest(parts) != self.states[step]:
            return "WRONG: loaded what was not saved"
        return "loads the newest" if step == _STEPS[-1] else "loads the one before"


class _Loop:
    """Stands for the loop's state, which this experiment does not look at."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def flipped(trial: Trial, rng: random.Random, count: int) -> Iterator[tuple[str, str, str]]:
    """Flip one bit, of each kind of file equally often."""
    for number in track(range(count), description="bits"):
        name = trial.files()[number % len(trial.files())]
        for tiers in (1, 2):
            file = trial.fresh() / name
            data = bytearray(file.read_bytes())
            at = rng.randrange(len(data))
            data[at] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
            where = " between tensors" if _is_gap(file, at) else ""
            yield f"a bit of {name}{where}", _copies(tiers), trial.start(tiers=tiers)


def cut(trial: Trial) -> Iterator[tuple[str, str, str]]:
    """Cut off a file, empty it, remove it."""
    for name in trial.files():
        for what in ("half", "empty", "missing"):
            for tiers in (1, 2):
                file = trial.fresh() / name
                data = file.read_bytes()
                file.write_bytes(data[: len(data) // 2] if what == "half" else b"")
                if what == "missing":
                    file.unlink()
                yield f"{name}: {what}", _copies(tiers), trial.start(tiers=tiers)


def foreign(trial: Trial) -> Iterator[tuple[str, str, str]]:
    """Start another model, and swap files of two checkpoints."""
    trial.fresh()
    yield "another model starts", _copies(1), trial.start(tiers=1, width=33)
    for name in trial.files():
        file = trial.fresh() / name
        older = complete_folders(LocalFolder(trial.good / "path"))[-1]
        shutil.copy(trial.good / "path" / str(older) / name, file)
        yield f"{name}: of an older checkpoint", _copies(1), trial.start(tiers=1)


def clock(trial: Trial) -> tuple[str, str, str]:
    """Let the newest be saved an hour before the other, by its clock."""
    file = trial.fresh() / MANIFEST
    manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    earlier = msgspec.structs.replace(manifest, saved_ns=time.time_ns() - _HOUR_NS)
    file.write_bytes(manifest_json(earlier))
    return "the clock jumped back an hour", _copies(1), trial.start(tiers=1)


def lock(trial: Trial) -> tuple[str, str, str]:
    """Let a saver take the place's lock, and kill it."""
    trial.fresh()
    place = trial.here / "path"
    code = (
        "import sys, time; from pathlib import Path; "
        "from torchloom_core.checkpoints.storage import LocalFolder; "
        "print(LocalFolder(Path(sys.argv[1])).lock('x') or 'locked', flush=True); time.sleep(999)"
    )
    saver = subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE)
    assert saver.stdout is not None
    assert saver.stdout.readline() == b"locked\n"
    held = LocalFolder(place).lock("another")
    saver.send_signal(signal.SIGKILL)
    saver.wait()
    free = LocalFolder(place).lock("another") == ""
    what = trial.start(tiers=1) if held and free else "WRONG: the lock stays"
    return "a killed saver's lock", _copies(1), what


def _copies(tiers: int) -> str:
    return "path" if tiers == 1 else "path, remote"


def _is_gap(file: Path, at: int) -> bool:
    if file.suffix != ".bin":
        return False
    shard = msgspec.json.decode(file.with_suffix(".json").read_bytes(), type=Shard)
    return not any(piece.at <= at < piece.at + piece.bytes for piece in shard.pieces)


def _parts(seed: int, width: int = 32) -> list[nn.Module | torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 5))
    return [model, torch.optim.AdamW(model.parameters(), lr=0.01)]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()


def _digest(parts: list[nn.Module | torch.optim.Optimizer]) -> bytes:
    gathered = TrainingState(parts).gather(0)
    tensors = [
        tensor.detach().contiguous().numpy().tobytes()
        for name, tensor in sorted(gathered.tensors.items())
        if not name.startswith("rank")
    ]
    return b"".join(tensors) + msgspec.json.encode(gathered.shared)


def _wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise SystemExit("the checkpoint is not complete")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
