"""The links between workers: the probe address of a worker, and the result of a probe.

docs/telemetry.md describes a probe.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import Stamp, Target

MAX_PAIRS = 512
"""How many links one action probes at most; no two of them share a worker."""

PROBE_DEADLINE_S = 10.0
"""The deadline of a probe, which takes about 4 s: other probes wait for it."""

MIN_PROBE_BYTES = 640 << 10
"""A fast link delivers bursts below twice 64 KiB at once, and no time can be measured."""

MAX_PROBE_BYTES = 8 << 20

ProbeBytes = Annotated[int, msgspec.Meta(ge=MIN_PROBE_BYTES, le=MAX_PROBE_BYTES)]
"""The bytes that one probe sends over its link."""

Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:%-]{1,253}\Z")]
"""A host's name, or an address of either family."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
ProbeToken = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ProbeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's sidecar accepts probes, and the secret that only the Weaver passes on.

    A restarted sidecar has another port and another ``token``.
    """

    host: Host
    port: Port
    token: ProbeToken


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe of a link.

    Attributes
    ----------
    bytes_per_s : float
        The median over the bursts after the first.
    latency_s : float
        Half of the shortest round trip.
    spread : float, optional
        The standard deviation of ``bytes_per_s`` over its value; None if there was time for one
        burst only.
    """

    bytes_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e15)]
    latency_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None


def measured_text(measured: Measured) -> str:
    """Return a measurement as text.

    Examples
    --------
    >>> measured_text(Measured(bytes_per_s=24.84e6, latency_s=0.0004, spread=0.031))
    '24.8 MB/s +- 3 %, 0.400 ms'
    >>> measured_text(Measured(bytes_per_s=24.84e6, latency_s=0.0004, spread=45.63))
    '24.8 MB/s (very uncertain), 0.400 ms'
    """
    spread = measured.spread
    if spread is None:
        accuracy = ""
    elif spread >= 1:
        accuracy = " (very uncertain)"
    else:
        accuracy = f" +- {100 * spread:.0f} %"
    return f"{measured.bytes_per_s / 1e6:.3g} MB/s{accuracy}, {measured.latency_s * 1e3:.3f} ms"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The last measurement of the link from ``sender`` to ``receiver``, and their nodes."""

    sender: Target
    sender_node: Target
    receiver: Target
    receiver_node: Target
    measured: Measured
    ts_ns: Stamp
