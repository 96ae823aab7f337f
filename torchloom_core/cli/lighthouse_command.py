"""``torchloom lighthouse``: torchft's lighthouse, active."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.announcing import announce
from torchloom_core.errors import LighthouseError
from torchloom_core.server_urls import LOGIN, with_login
from torchloom_core.wire.subjects import NAME_RULE, is_name

_Count = Annotated[int, Parameter(validator=Number(gte=0))]
_Ms = Annotated[int, Parameter(validator=Number(gt=0, lte=86_400_000))]


def lighthouse(
    *,
    min_replicas: Annotated[_Count, Parameter(name=["--min_replicas", "--min-replicas"])],
    bind: str = "[::]:29510",
    join_timeout_ms: Annotated[
        _Ms, Parameter(name=["--join_timeout_ms", "--join-timeout-ms"])
    ] = 60_000,
    heartbeat_timeout_ms: Annotated[
        _Ms, Parameter(name=["--heartbeat_timeout_ms", "--heartbeat-timeout-ms"])
    ] = 5_000,
    quorum_tick_ms: Annotated[_Ms, Parameter(name=["--quorum_tick_ms", "--quorum-tick-ms"])] = 100,
    heartbeat_hold_ms: Annotated[
        int | None,
        Parameter(name=["--heartbeat_hold_ms", "--heartbeat-hold-ms"], validator=Number(gte=0)),
    ] = None,
    status_bind: Annotated[
        str, Parameter(name=["--status_bind", "--status-bind"])
    ] = "127.0.0.1:29511",
    run: str = "run",
    state: Path | None = None,
    standby: Annotated[bool, Parameter(negative="")] = False,
    expect: tuple[str, ...] = (),
    url: str = "",
    creds: Path | None = None,
) -> None:
    """Serve torchft's Managers in the place of torchft_lighthouse, until SIGINT or SIGTERM.

    Parameters
    ----------
    min_replicas
        Replica groups that a quorum has at the least.
    bind
        Where Managers connect. The port is open to whoever reaches it: keep it on a trusted
        network.
    join_timeout_ms
        How long to wait for groups that are alive and do not ask for a quorum.
    heartbeat_timeout_ms
        How long a group may be silent before it counts as dead.
    quorum_tick_ms
        How often to look for a quorum that only waited for time to pass.
    heartbeat_hold_ms
        How long the answer to a heartbeat is kept back, to see at once when its sender ends; 0
        answers at once, as torchft does. Unless given 2000, or .4 of the heartbeat timeout.
    status_bind
        Where its page, JSON and metrics are; empty for nowhere.
    run
        The training run, which its state belongs to.
    state
        File in which it keeps what a restart must know.
    standby
        Wait until the lighthouse that serves with this state has ended, then take its place.
    expect
        Names of replica groups to wait for, where no state is found.
    url
        The nats-server of the run's Weaver; nobody steers unless it is given. USER:PASSWORD may
        stand in TORCHLOOM_NATS_LOGIN instead, so that no list of processes shows it.
    creds
        NATS credentials of a lighthouse.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once; what matters we say ourselves
    if not is_name(run):
        raise LighthouseError(f"--run: need {NAME_RULE}, was {run!r}")
    from torchloom_core.lighthouse.membership import Rules
    from torchloom_core.lighthouse.server import Settings, serve

    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
        force=True,
    )
    settings = Settings(
        bind=bind,
        status_bind=status_bind,
        rules=Rules(min_replicas, join_timeout_ms / 1e3, heartbeat_timeout_ms / 1e3),
        tick_s=quorum_tick_ms / 1e3,
        hold_s=None if heartbeat_hold_ms is None else heartbeat_hold_ms / 1e3,
        run=run,
        state=state,
        standby=standby,
        expect=expect,
        url=with_login(url, os.environ.get(LOGIN, "")),
        creds=creds,
    )

    asyncio.run(serve(settings, announce))
