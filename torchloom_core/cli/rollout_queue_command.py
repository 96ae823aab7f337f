"""``torchloom rollout-queue``: between the rollout workers and the trainers of a run."""

import asyncio
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.floor.addresses import address

_Megabytes = Annotated[int, Parameter(validator=Number(gte=1, lte=10_000_000))]


def rollout_queue(
    *,
    bind: str = "127.0.0.1:29530",
    max_batches: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))] = 64,
    max_batch_mb: _Megabytes = 1024,
    max_weights_mb: _Megabytes = 16_384,
) -> None:
    """Hold rollouts, the newest weights and the next prompts, until SIGINT or SIGTERM.

    Parameters
    ----------
    bind
        Address for the workers. The port has no authentication: keep it on a trusted network.
    max_batches
        Batches that it holds. A rollout worker waits while it is full.
    max_batch_mb
        Memory for all batches together, MB.
    max_weights_mb
        Memory for one version of the weights, MB. It holds two while newer ones arrive.
    """
    from torchloom_core.live.rollout_queue.queue import QueueLimits
    from torchloom_core.live.rollout_queue.server import serve

    log_on_stderr()
    host, port = address(bind, "--bind")
    limits = QueueLimits(
        batches=max_batches,
        batch_bytes=max_batch_mb * 1_000_000,
        weights_bytes=max_weights_mb * 1_000_000,
    )
    asyncio.run(serve(host, port, limits, announce))
