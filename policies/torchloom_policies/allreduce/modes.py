"""Prior cost of each compression mode before it has run: bytes, messages, coding time."""

from collections.abc import Mapping

import msgspec


class ModePrior(msgspec.Struct, frozen=True):
    """The prior cost of one mode.

    ``share`` is that of the gradient's bytes (float32) on the wire, as in docs/compression.md: a
    rank sends 2 (n-1)/n times it in a ring or an exchange, n-1 times it if it ``gathers``
    (allgather). A reduction has ``collectives`` in succession, each with one round per other rank.
    Coding and decoding takes ``code_ns_per_byte`` of gradient: roughly for 4 ranks on two cores, by
    experiments/compression/coding.py. ``ring_share`` is the share of its wire time from neighbour
    to neighbour in the ring, and ``link_use`` that of a link's bandwidth that it uses: the
    connections of a rank to all others leave some unused (experiments/allreduce, static modes).
    """

    share: float
    collectives: int
    code_ns_per_byte: float
    gathers: bool = False
    share_log_sd: float = 0.05
    code_log_sd: float = 0.7
    ring_share: float = 0.5
    link_use: float = 0.72

    def sent_share(self, ranks: int) -> float:
        """Return the bytes that one of ``ranks`` ranks sends, as a share of its gradient."""
        others = max(0, ranks - 1)
        return self.share * (others if self.gathers else 2.0 * others / max(1, ranks))

    def hops(self, ranks: int, reductions: float) -> float:
        """Return the number of successive messages in a step."""
        return self.collectives * max(0, ranks - 1) * reductions


NONE = "none"

PRIORS: Mapping[str, ModePrior] = {
    NONE: ModePrior(1.0, 2, 0.0, code_log_sd=0.0, ring_share=1.0, link_use=1.0),
    "bf16": ModePrior(0.5, 2, 1.0),
    "fp16": ModePrior(0.501, 2, 3.0),
    "int8": ModePrior(0.254, 2, 2.5),
    "topk": ModePrior(0.015, 1, 9.0, gathers=True, share_log_sd=1.0, ring_share=1.0, link_use=1.0),
    "powersgd": ModePrior(0.02, 6, 3.0, share_log_sd=1.5, ring_share=1.0, link_use=1.0),
}
"""Share of topk: 1 % of the numbers, six bytes each. That of powersgd depends on the matrices."""

UNKNOWN = ModePrior(1.0, 2, 2.0, share_log_sd=1.5, code_log_sd=1.0)
"""A mode that a custom process group adds."""


def prior_of(mode: str) -> ModePrior:
    """Return the prior of the mode."""
    return PRIORS.get(mode, UNKNOWN)
