"""Probe: sidecars measure links between workers; training is not interrupted."""

from typing import Annotated

import msgspec

from torchloom_core.wire.capability import Action, Target
from torchloom_core.wire.links import MAX_PAIRS, ProbeBytes


class ProbeLinks(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="probe"):
    """Measure the links from senders to receivers, all of ``pairs`` at the same time.

    A worker may be in one pair only, so that no two probes share a link. Each worker needs
    ``TORCHLOOM_LINK_ADDRESS`` in its environment: see ``view.can_be_probed``.

    Raises
    ------
    ValueError
        If a worker is named twice.

    Examples
    --------
    >>> from torchloom_core.plugin import ProbeLinks
    >>> ProbeLinks(pairs=(("g0-0", "g1-0"), ("g2-0", "g3-0"))).probe_bytes
    1048576
    """

    pairs: Annotated[
        tuple[tuple[Target, Target], ...], msgspec.Meta(min_length=1, max_length=MAX_PAIRS)
    ]
    probe_bytes: ProbeBytes = 1 << 20

    def __post_init__(self) -> None:
        """Refuse pairs that share a worker."""
        named: set[str] = set()
        for pair in self.pairs:
            for worker in pair:
                if worker in named:
                    raise ValueError(f"pairs: need each worker once, was {worker} twice")
                named.add(worker)
