"""What a rank adds to a checkpoint of DeepSpeed: random states, data position, schedule, knobs."""

import logging
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.adapters.random_states import draw_nothing_on_resume
from torchloom_threadlet.checkpoint.json_state import decode, encode
from torchloom_threadlet.checkpoint.state import random_states, set_random_states

_SCHEDULE = ("base_lrs", "min_lrs", "max_lrs", "delta_lrs", "org_lrs")

_logger = logging.getLogger(__name__)


class RankState:
    """A file beside those of the engine, for each rank its own.

    Parameters
    ----------
    engine : deepspeed.DeepSpeedEngine
        The script's.
    loader : optional
        The data, with ``state_dict`` and ``load_state_dict``.
    loom : Loom
        Whose run-fenced knobs are saved.
    """

    def __init__(self, engine: Any, loader: Any, loom: Any) -> None:
        self._engine, self._loader, self._loom = engine, loader, loom
        draw_nothing_on_resume(loader)

    def write(self, folder: Path) -> None:
        """Write this rank's file."""
        folder.mkdir(parents=True, exist_ok=True)
        scheduler = self._engine.lr_scheduler
        loader = self._loader.state_dict() if self._loader is not None else None
        tensors: dict[str, torch.Tensor] = {}
        state = {
            "loom": dict(self._loom.state_dict()),
            "schedule": {  # DeepSpeed's schedulers save their step alone
                name: [float(rate) for rate in rates]
                for name in _SCHEDULE
                if isinstance(rates := getattr(scheduler, name, None), list)
            },
            "random": encode(random_states(), "random", tensors),
            "loader": encode(loader, "loader", tensors),
            "tensors": tensors,
        }
        torch.save(state, folder / _file(rank_of()))

    def read(self, folder: Path) -> None:
        """Restore from this rank's file; a checkpoint from before torchLoom has none."""
        own, first = folder / _file(rank_of()), folder / _file(0)
        if not own.exists():
            _logger.warning("%s: no such file: random states are not restored", own)
            if not first.exists():
                return
        path = own if own.exists() else first  # a rank that was added has the others' knobs
        state = torch.load(path, map_location="cpu", weights_only=True)
        scheduler = self._engine.lr_scheduler
        for name in _SCHEDULE:
            rates, present = state["schedule"].get(name), getattr(scheduler, name, None)
            if rates is not None and isinstance(present, list):
                if len(rates) != len(present) or not all(map(math.isfinite, rates)):
                    need = f"{len(present)} finite rates as {name}"
                    raise CheckpointError(f"{path}: need {need}, was {rates!r:.60}")
                setattr(scheduler, name, rates)
        self._loom.load_state_dict(state["loom"])
        if path is not own:
            return
        loader = decode(state["loader"], state["tensors"])
        if self._loader is not None and loader is not None:
            self._loader.load_state_dict(loader)
        set_random_states(decode(state["random"], state["tensors"]))


def rank_of() -> int:
    """Return this process's rank, 0 if it trains alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def _file(rank: int) -> str:
    return f"torchloom_rank{rank}.pt"
