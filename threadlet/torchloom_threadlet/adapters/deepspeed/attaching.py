"""What a script with a DeepSpeed engine calls."""

import os
from pathlib import Path
from typing import Any, Unpack, cast

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.deepspeed.adapter import DeepSpeedAdapter
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom


def attach(
    engine: Any,
    folder: str | os.PathLike[str] | None = None,
    *,
    loader: Any = None,
    keep: int = 3,
    **placement: Unpack[PlacementArguments],
) -> Loom:
    """Attach this rank; call it on all ranks after ``deepspeed.initialize``.

    From now on ``engine.step`` reports each optimizer step and carries out commands after it. Once
    the run is drained it returns False, and the next optimizer step ends the process with status 0.

    Parameters
    ----------
    engine : deepspeed.DeepSpeedEngine
        The script's, with an optimizer.
    folder : str or PathLike, optional
        Where ``engine.save_checkpoint`` saves on request and at a drain, as ``step-N``. Without
        it the script offers its own function by ``loom.on_checkpoint``.
    loader : optional
        The training data, such as a StatefulDataLoader, whose position checkpoints keep.
    keep : int
        The newest checkpoints on request that stay there.
    **placement
        As for :func:`torchloom_threadlet.attach`.

    Raises
    ------
    ConfigError
        If the engine cannot be attached, ``loader`` has no state, ``keep`` is below 1, or this
        process is attached already with other arguments.
    """
    if keep < 1:
        raise ConfigError(f"attach: need keep >= 1, was {keep}")
    kind = type(engine).__name__
    if not hasattr(engine, "global_steps") or kind == "PipelineEngine":
        raise ConfigError(f"attach: need a DeepSpeedEngine without pipeline stages, was {kind}")
    if not hasattr(engine.optimizer, "param_groups"):
        raise ConfigError("attach: need an engine with an optimizer, was none")
    if loader is not None and not hasattr(loader, "load_state_dict"):
        was = type(loader).__name__
        raise ConfigError(f"attach: need a loader with state_dict and load_state_dict, was {was}")
    loom = attach_framework(DeepSpeedAdapter(), **placement)
    adapter = cast("DeepSpeedAdapter", loom.adapter)
    adapter.serve(engine, Path(folder) if folder is not None else None, loader, keep)
    loom.manage()
    return loom


def resume(loom: Loom) -> int:
    """Load the newest checkpoint of the folder, and return its number of steps; 0 without one.

    Call it on all ranks, before the first batch. Knobs, random states and the position of
    ``loader`` are restored as well.
    """
    return cast("DeepSpeedAdapter", loom.adapter).load_newest()
