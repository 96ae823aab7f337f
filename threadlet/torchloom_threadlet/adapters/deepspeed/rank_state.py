"""What a rank adds to a checkpoint of DeepSpeed: random states, data position, schedule, knobs."""

import logging
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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
        self._states: Any = None

    def write(self, folder: Path) -> None:
        """Write this rank's file."""
        folder.mkdir(parents=True, exist_ok=True)
        scheduler = self._engine.lr_scheduler
        state = {
            "loom": dict(self._loom.state_dict()),
            "random": _plain(random_states()),
            "schedule": {  # DeepSpeed's schedulers save their step alone
                name: [float(rate) for rate in rates]
                for name in _SCHEDULE
                if isinstance(rates := getattr(scheduler, name, None), list)
            },
            "loader": self._loader.state_dict() if self._loader is not None else None,
        }
        torch.save(state, folder / _file())

    def read(self, folder: Path) -> None:
        """Restore from this rank's file; a checkpoint from before torchLoom has none."""
        path = folder / _file()
        if not path.exists():
            _logger.warning("%s: no such file: random states are not restored", path)
            return
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, rates in state["schedule"].items():
            if hasattr(self._engine.lr_scheduler, name):
                setattr(self._engine.lr_scheduler, name, rates)
        self._loom.load_state_dict(state["loom"])
        if self._loader is not None and state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])
        self._states = state["random"]
        set_random_states(self._states)
        self._handle = self._engine.register_forward_pre_hook(self._restore)

    def _restore(self, engine: Any, arguments: Any) -> None:
        """Set the states once more: a loader's iterator has drawn from them as it began."""
        if engine.training:
            set_random_states(self._states)
            self._handle.remove()


def _file() -> str:
    return f"torchloom_rank{dist.get_rank() if dist.is_initialized() else 0}.pt"


def _plain(states: dict[str, Any]) -> dict[str, Any]:
    """Return random states without numpy's arrays, which are not loaded from a file."""
    if "numpy" in states:
        kind, keys, *rest = states["numpy"]
        states["numpy"] = (kind, keys.tolist(), *rest)
    return states
