"""``torchloom probe``."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, RequestError, Wait, propose
from torchloom_core.wire.links import MAX_PROBE_BYTES, MIN_PROBE_BYTES

_ProbeBytes = Annotated[int, Parameter(validator=Number(gte=MIN_PROBE_BYTES, lte=MAX_PROBE_BYTES))]


def probe(
    sender: str,
    receiver: str,
    /,
    *more: str,
    probe_bytes: _ProbeBytes = 1 << 20,
    wait: Wait = WAIT_S,
    connection: Connection = HERE,
) -> None:
    """Measure the bandwidth and latency of links between workers.

    The sidecars measure it while training continues; TORCHLOOM_LINK_ADDRESS must be set there.

    Parameters
    ----------
    sender
        Worker that sends.
    receiver
        Worker that receives.
    more
        More pairs of sender and receiver, measured at the same time; each worker at most once.
    probe_bytes
        Bytes to send over each link.
    """
    named = (sender, receiver, *more)
    if len(named) % 2:
        raise RequestError(f"probe: need a receiver after {named[-1]!r}, was nothing")
    pairs = tuple(zip(named[::2], named[1::2], strict=True))
    try:
        action = ProbeLinks(pairs=pairs, probe_bytes=probe_bytes)
    except ValueError as error:
        raise RequestError(f"probe: {error}") from None
    propose(action, wait, connection)
