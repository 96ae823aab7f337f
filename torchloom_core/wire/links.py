"""The links between workers: where a worker can be probed, and what a probe measured.

docs/telemetry.md says how a probe goes.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import Stamp, Target

MAX_PAIRS = 512
"""How many links one action probes: each of them by two workers that no other pair has."""

PROBE_DEADLINE_S = 10.0
"""Until when a probe may begin and end, which takes some four seconds: others wait for it."""

MIN_PROBE_BYTES = 640 << 10
"""Less than twice 64 KiB a burst a fast link hands over at one moment: there is no time to take."""

MAX_PROBE_BYTES = 8 << 20

ProbeBytes = Annotated[int, msgspec.Meta(ge=MIN_PROBE_BYTES, le=MAX_PROBE_BYTES)]
"""What one probe sends over its link."""

Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:%-]{1,253}\Z")]
"""A host's name, or an address of either family."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
ProbeToken = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ProbeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's sidecar takes probes, and the secret that only the Weaver passes on.

    Of one sidecar's life: the next one has another port and another ``token``.
    """

    host: Host
    port: Port
    token: ProbeToken


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe measured of a link.

    Attributes
    ----------
    bytes_per_s : float
        The median over the bursts after the first.
    latency_s : float
        Half of the shortest round trip.
    spread : float, optional
        The standard deviation of ``bytes_per_s`` over its value; None where there was time for
        one burst alone.
    """

    bytes_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e15)]
    latency_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None


def measured_text(measured: Measured) -> str:
    """Return it for people.

    Examples
    --------
    >>> measured_text(Measured(bytes_per_s=24.84e6, latency_s=0.0004, spread=0.031))
    '24.8 MB/s +- 3 %, 0.400 ms'
    >>> measured_text(Measured(bytes_per_s=24.84e6, latency_s=0.0004, spread=45.63))
    '24.8 MB/s (hardly known), 0.400 ms'
    """
    spread = measured.spread
    if spread is None:
        sure = ""
    elif spread >= 1:
        sure = " (hardly known)"
    else:
        sure = f" +- {100 * spread:.0f} %"
    return f"{measured.bytes_per_s / 1e6:.3g} MB/s{sure}, {measured.latency_s * 1e3:.3f} ms"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured last of the link from ``sender`` to ``receiver``, and where they sat."""

    sender: Target
    sender_node: Target
    receiver: Target
    receiver_node: Target
    measured: Measured
    ts_ns: Stamp
