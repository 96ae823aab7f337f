"""``torchloom lighthouse-relay``: one fixed address for the lighthouse that serves now."""

import asyncio
import signal
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.streams import announce, log_on_stderr
from torchloom_core.floor.addresses import address
from torchloom_core.floor.errors import LighthouseError
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.tls import TlsFiles


def lighthouse_relay(
    *lighthouses: Annotated[str, Parameter(negative="")],
    bind: str = "127.0.0.1:29514",
    ca: str = "",
    certificate: str = "",
    key: str = "",
) -> None:
    """Forward an address on each trainer's host to the lighthouse that serves now.

    Parameters
    ----------
    lighthouses
        host:port of each lighthouse that a Weaver or standby may start.
    bind
        Address for the Managers of this host.
    ca
        PEM file with the CA that signed the lighthouses' certificates: connect to them by TLS,
        which torchft's Managers cannot.
    certificate
        PEM file with this host's certificate, if the lighthouses have a CA and so ask for one.
    key
        PEM file with its key.
    """
    from torchloom_core.live.lighthouse.relay import Relay

    log_on_stderr()
    places = [address(text, "LIGHTHOUSES") for text in lighthouses]
    if not places:
        raise LighthouseError("LIGHTHOUSES: need the host:port of each lighthouse, was none")
    if bool(certificate) != bool(key):
        raise LighthouseError(f"need both --certificate and --key, was {certificate or key!r}")
    if certificate and not ca:
        raise LighthouseError("need --ca beside --certificate and --key, was none")
    relay = Relay(places, TlsFiles(certificate, key, ca, "lighthouse-relay"))

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

        def ready(url: str) -> None:
            announce(f"set for torchft: TORCHFT_LIGHTHOUSE={url}")

        await first_done(relay.serve(address(bind, "--bind"), ready), stop.wait())

    asyncio.run(run())
