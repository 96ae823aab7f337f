"""``torchloom rendezvous``: forms the generations of a program that is split over workers."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.floor.addresses import address
from torchloom_core.floor.errors import LighthouseError

_Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=86_400))]


def rendezvous(
    *,
    workers: Annotated[int, Parameter(validator=Number(gte=1, lte=4096))],
    standbys: Annotated[int, Parameter(validator=Number(gte=0, lte=4096))] = 0,
    bind: str = "127.0.0.1:29520",
    heartbeat_timeout_s: _Seconds = 3.0,
    stop_timeout_s: _Seconds = 30.0,
    state: Path | None = None,
) -> None:
    """Form the generations of a pipeline's workers, until SIGINT or SIGTERM.

    Parameters
    ----------
    workers
        How many workers to wait for before training begins.
    standbys
        How many of them stand by, to take the place of one that ends.
    bind
        Address for the workers. The port has no authentication: keep it on a trusted network.
    heartbeat_timeout_s
        A worker without a heartbeat for this long counts as ended, s.
    stop_timeout_s
        How long a worker may take to leave a generation in which another has ended, s: longer
        than its longest computation between two sends.
    state
        File from which the present generation is continued after a restart.
    """
    from torchloom_core.live.rendezvous.server import serve
    from torchloom_core.live.rendezvous.settings import Settings

    log_on_stderr()
    if standbys >= workers:
        raise LighthouseError(f"--standbys: need fewer than --workers, {workers}, was {standbys}")
    host, port = address(bind, "--bind")
    settings = Settings(
        workers=workers,
        standbys=standbys,
        heartbeat_timeout_s=heartbeat_timeout_s,
        stop_timeout_s=stop_timeout_s,
    )
    asyncio.run(serve(host, port, settings, state, announce))
