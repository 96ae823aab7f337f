"""What the training function of a Ray Train worker calls."""

import os
from typing import Unpack

import ray.train
from ray.train.v2.api.context import TrainContext

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.ray.adapter import RayAdapter
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom


def attach(**placement: Unpack[PlacementArguments]) -> Loom:
    """Attach this worker of Ray Train; call it in the training function.

    Then pass the optimizer to ``loom.manage``, call ``loom.step`` at the end of each step, and
    ``loom.close`` before the function returns. A group of workers that Ray starts again belongs
    to the same job: the Weaver sets the desired values of its knobs again.

    Parameters
    ----------
    **placement
        As for :func:`torchloom_threadlet.attach`; the rank is Ray's.

    Raises
    ------
    ConfigError
        If it is not called in a worker of Ray Train, or this process is attached already with
        other arguments.
    """
    context = _context()
    storage = context.get_storage()
    # The same after a restart of the group, and in a run that Ray resumes under its old name.
    os.environ.setdefault("TORCHLOOM_JOB", f"ray:{storage.experiment_fs_path}")
    placement.setdefault("rank", context.get_world_rank())
    return attach_framework(RayAdapter(), **placement)


def _context() -> TrainContext:
    try:
        context: TrainContext = ray.train.get_context()
        context.get_world_rank()
    except Exception as error:
        raise ConfigError(
            "attach: need a worker of Ray Train: call it in train_loop_per_worker, "
            "not in the script that starts the trainer"
        ) from error
    return context
