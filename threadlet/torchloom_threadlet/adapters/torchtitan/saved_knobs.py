"""What torchtitan's checkpoint leaves out: the values of knobs, in a file beside it.

Of a schedule torchtitan saves the step alone: the rates that it scales are those of the script.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks

FILE = "torchloom.json"

_logger = logging.getLogger(__name__)


def save_with_checkpoints(
    trainer: Any, script: list[list[float]], values: Callable[[], Mapping[str, Any]]
) -> None:
    """Write the values beside each checkpoint that torchtitan writes from now on, on rank 0.

    ``script`` holds the rates that the script itself has, as by :func:`base_rates`.
    """
    checkpointer = trainer.checkpointer
    if "://" in str(checkpointer.folder):
        return
    save = checkpointer.save

    def saved(step: int, *rest: Any, **named: Any) -> Any:
        is_written = save(step, *rest, **named)
        if is_written and dist.get_rank() == 0:
            state = {**values(), "base_lrs": base_rates(trainer), "script_base_lrs": script}
            path = _path(trainer, step)
            part = path.with_suffix(".new")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(json.dumps(state), encoding="utf-8")
                part.replace(path)
            except (OSError, ValueError) as error:
                _logger.warning("torchtitan: values of knobs are not saved: %s", error)
        return is_written

    replaced(checkpointer, "save", saved)


def read_saved(trainer: Any, ranks: SavingRanks) -> dict[str, Any] | None:
    """Return what was written beside the checkpoint that is loaded; None if there is none.

    All ranks have to call it: rank 0 reads.
    """
    text = ""
    if ranks.rank == 0:
        path = _path(trainer, trainer.step)
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, ValueError) as error:
            _logger.warning("torchtitan: %s cannot be read: %s", path, error)
    text = ranks.first(text)
    if not text:
        return None
    try:
        state = json.loads(text)
        bases = [list(map(float, base)) for base in state["base_lrs"]]
        return {**state, "knobs": dict(state["knobs"]), "base_lrs": bases}
    except (KeyError, TypeError, ValueError):
        _logger.warning("torchtitan: %s of the checkpoint is damaged: it is ignored", FILE)
        return None


def restore_rates(trainer: Any, state: Mapping[str, Any]) -> bool:
    """Have the schedules scale the saved rates; return False if the script has changed its own."""
    if state.get("script_base_lrs") != base_rates(trainer):
        line = "torchtitan: the script's learning rate is another: the checkpoint's is ignored"
        _logger.warning(line)
        return False
    for schedule, bases in zip(trainer.lr_schedulers.schedulers, state["base_lrs"], strict=True):
        schedule.base_lrs = list(bases)
        shares = [rate(schedule.last_epoch) for rate in schedule.lr_lambdas]
        for group, base, share in zip(schedule.optimizer.param_groups, bases, shares, strict=True):
            group["lr"] = base * share
    return True


def base_rates(trainer: Any) -> list[list[float]]:
    """Return the rates that the schedules scale, by optimizer and parameter group."""
    return [list(map(float, one.base_lrs)) for one in trainer.lr_schedulers.schedulers]


def _path(trainer: Any, step: int) -> Path:
    return Path(trainer.checkpointer._create_checkpoint_id(step)) / FILE
