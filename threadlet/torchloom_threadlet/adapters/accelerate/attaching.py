"""What a script with an Accelerator calls."""

import os
from pathlib import Path
from typing import Any, Unpack, cast

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.accelerate.adapter import AccelerateAdapter
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom


def attach(
    accelerator: Any,
    folder: str | os.PathLike[str] | None = None,
    *,
    keep: int = 3,
    **placement: Unpack[PlacementArguments],
) -> Loom:
    """Attach this rank; call it before ``accelerator.prepare``, whose models are then measured.

    Then pass what ``accelerator.prepare`` returned to ``loom.manage(optimizer, scheduler)``, and
    call ``loom.step`` at the end of each optimizer step.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        The script's.
    folder : str or PathLike, optional
        Where ``accelerator.save_state`` saves on request and at a drain, as ``step-N``. Without
        it the script offers its own function by ``loom.on_checkpoint``.
    keep : int
        The newest checkpoints that stay there.
    **placement
        As for :func:`torchloom_threadlet.attach`.

    Raises
    ------
    ConfigError
        If ``keep`` is below 1, or this process is attached already with other arguments.
    """
    if keep < 1:
        raise ConfigError(f"attach: need keep >= 1, was {keep}")
    if not hasattr(accelerator, "save_state"):
        raise ConfigError(f"attach: need an Accelerator, was {type(accelerator).__name__}")
    placement.setdefault("rank", accelerator.process_index)
    loom = attach_framework(AccelerateAdapter(), **placement)
    adapter = cast("AccelerateAdapter", loom.adapter)
    adapter.serve(accelerator, Path(folder) if folder is not None else None, keep)
    return loom


def resume(loom: Loom) -> int:
    """Load the newest checkpoint of the folder, and return its number of steps; 0 without one.

    Call it on all ranks after ``loom.manage``. Knobs and random states are restored as well, and
    the position in the data of loaders with ``use_stateful_dataloader=True``.
    """
    return cast("AccelerateAdapter", loom.adapter).load_newest()
