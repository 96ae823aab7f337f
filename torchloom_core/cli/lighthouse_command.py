"""``torchloom lighthouse``: a torchft lighthouse that the Weaver can steer."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.floor.errors import LighthouseError
from torchloom_core.floor.server_urls import LOGIN, with_login
from torchloom_core.floor.tls import TlsFiles
from torchloom_core.wire.subjects import NAME_RULE, is_name

_Count = Annotated[int, Parameter(validator=Number(gte=0))]
_Ms = Annotated[int, Parameter(validator=Number(gt=0, lte=86_400_000))]


def _spelled(name: str) -> Parameter:
    """Return an option with underscores, as torchft has it, and with dashes."""
    return Parameter(name=[f"--{name}", f"--{name.replace('_', '-')}"])


def lighthouse(
    *,
    min_replicas: Annotated[_Count, _spelled("min_replicas")],
    bind: str = "[::]:29510",
    join_timeout_ms: Annotated[_Ms, _spelled("join_timeout_ms")] = 60_000,
    heartbeat_timeout_ms: Annotated[_Ms, _spelled("heartbeat_timeout_ms")] = 5_000,
    quorum_tick_ms: Annotated[_Ms, _spelled("quorum_tick_ms")] = 100,
    heartbeat_hold_ms: Annotated[_Count | None, _spelled("heartbeat_hold_ms")] = None,
    status_bind: Annotated[str, _spelled("status_bind")] = "127.0.0.1:29511",
    run: str = "run",
    state: Path | None = None,
    standby: Annotated[bool, Parameter(negative="")] = False,
    expect: tuple[str, ...] = (),
    since: _Count = 0,
    url: str = "",
    creds: Path | None = None,
    url_ca: str = "",
    url_certificate: str = "",
    url_key: str = "",
    certificate: str = "",
    key: str = "",
    ca: str = "",
) -> None:
    """Serve torchft's Managers in place of torchft_lighthouse, until SIGINT or SIGTERM.

    Parameters
    ----------
    min_replicas
        Minimum number of replica groups in a quorum.
    bind
        Address for the Managers. The port has no authentication: keep it on a trusted network.
    join_timeout_ms
        How long to wait for groups that send heartbeats but request no quorum, ms.
    heartbeat_timeout_ms
        A group without a heartbeat for this long counts as failed, ms.
    quorum_tick_ms
        Interval between checks for a quorum, ms.
    heartbeat_hold_ms
        How long the answer to a heartbeat is delayed, ms, so that the end of its sender is seen at
        once; 0: do not delay, as torchft. Default: the lesser of 2000 and 0.4 heartbeat timeouts.
    status_bind
        Address for the status page, JSON and metrics; empty: none.
    run
        Name of the run.
    state
        File that stores what the lighthouse needs after a restart.
    standby
        Wait until the lighthouse that uses this state file has ended, then take its place.
    expect
        Replica groups to wait for when there is no state file.
    since
        When a Weaver declared this one the run's lighthouse, ns since the Unix epoch: relays lead
        to the latest. 0: now.
    url
        URL of the Weaver's nats-server; without it the Weaver cannot steer this lighthouse. Put
        USER:PASSWORD in TORCHLOOM_NATS_LOGIN to hide them from process lists.
    creds
        File with the NATS credentials of a lighthouse.
    url_ca
        PEM file with the CA that signed the nats-server's certificate, for a URL tls://host:port.
    url_certificate
        PEM file with the certificate by which that server knows this host, if it asks for one.
    url_key
        PEM file with the key of that certificate.
    certificate
        PEM file with the certificate of this lighthouse, for TLS. torchft's Managers speak none:
        they need `torchloom lighthouse-relay`.
    key
        PEM file with the key of this certificate.
    ca
        PEM file with a CA: with it only relays with a certificate of that CA may connect.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once; we log what matters
    if not is_name(run):
        raise LighthouseError(f"--run: need {NAME_RULE}, was {run!r}")
    from torchloom_core.live.lighthouse.membership import Rules
    from torchloom_core.live.lighthouse.server import Settings, serve

    for option, pair in (("", (certificate, key)), ("url_", (url_certificate, url_key))):
        if bool(pair[0]) != bool(pair[1]):
            need = f"need both --{option}certificate and --{option}key"
            raise LighthouseError(f"{need}, was {pair[0] or pair[1]!r}")
    if ca and not certificate:
        raise LighthouseError("need --certificate and --key beside --ca, was --ca alone")
    log_on_stderr()
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
        since_ns=since,
        url=with_login(url, os.environ.get(LOGIN, "")),
        creds=creds,
        broker_tls=TlsFiles(url_certificate, url_key, url_ca, "--url"),
        tls=TlsFiles(certificate, key, ca, "lighthouse"),
    )

    asyncio.run(serve(settings, announce))
