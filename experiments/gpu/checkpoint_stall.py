"""What training waits for a checkpoint of 2 GB: ``loom.checkpoints`` beside ``torch.save``.

``python -m experiments.gpu.checkpoint_stall cuda``; ``run.py`` calls this.
"""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import torch

from experiments.bench.figure import Figure
from experiments.checkpoint_cost.methods import METHODS, OURS, SYNCED, Synced
from experiments.checkpoint_cost.run import measure as measure_saves
from experiments.gpu.section import Device, Measurement, Skipped, main

PLAIN = "torch.save"
_LIMIT = 0.1
_MEGABYTES, _SMALL_MEGABYTES = 2000, 8
_SAVES, _FEW_SAVES = 5, 2
_ROOM = 5
"""The disk needs room for so many checkpoints: two of each method, and one that is written."""


class Plain(Synced):
    """``torch.save`` alone, which leaves the bytes to the page cache."""

    def begin(self, step: int) -> None:
        """Save."""
        path = self._folder / f"{step}.pt"
        torch.save(self._state.state_dict(), path)
        path.unlink()


def measure(device: Device) -> list[Measurement]:
    """Measure one figure."""
    return [partial(stall, device)]


def stall(device: Device) -> Figure:
    """Save with each method in turn."""
    megabytes = device.sized(_MEGABYTES, _SMALL_MEGABYTES)
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        free = shutil.disk_usage(folder).free
        if free < _ROOM * megabytes * 1e6:
            needed = _ROOM * megabytes / 1e3
            raise Skipped(f"need {needed:g} GB of free disk here, was {free / 1e9:.1f}")
        methods = {PLAIN: Plain, SYNCED: METHODS[SYNCED], OURS: METHODS[OURS]}
        saves = device.sized(_SAVES, _FEW_SAVES)
        found = measure_saves(megabytes, saves, Path(folder), methods, device.torch)
    ratios = [a / b for a, b in zip(found[OURS]["wait"], found[PLAIN]["wait"], strict=True)]
    numbers = {"gigabytes": megabytes / 1e3}
    for method, name in ((OURS, "staged"), (PLAIN, "torch_save"), (SYNCED, "torch_save_fsync")):
        numbers |= {
            f"{name}_{key}_ms": median(found[method][key])
            for key in ("wait", "felt", "on_file", "first")
        }
    what = "the longest wait for a staged checkpoint / for torch.save without fsync"
    return Figure("checkpoint_stall", what, _LIMIT, "at most", ratios, numbers)


if __name__ == "__main__":
    main(measure)
