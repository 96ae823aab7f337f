"""What is expected of each compression mode before it has run: bytes, messages, time to code."""

from collections.abc import Mapping

import msgspec


class ModePrior(msgspec.Struct, frozen=True):
    """What one mode is expected to cost.

    Attributes
    ----------
    share : float
        Of the gradient's bytes (float32) what goes over the wire each way, as in
        docs/compression.md; of what a ring or an exchange sends (``gathers`` false) 2 (n-1)/n of
        it, of what is gathered n-1 times it.
    gathers : bool
        Whether everybody's own goes to everybody.
    collectives : int
        One after another in a reduction, each in as many rounds as there are other ranks.
    code_ns_per_byte : float
        Coding and decoding, nanoseconds a byte of gradient: about what 4 ranks take that share
        two cores, by experiments/compression/coding.py.
    share_log_sd, code_log_sd : float
        How far off that may be, as the standard deviation of the logarithm.
    ring_share : float
        Of its wire time what goes from neighbour to neighbour in the ring's order.
    link_use : float
        Of the bandwidth of a link what it makes use of: several connections that share one, each
        rank's to all others, leave some of it unused (experiments/allreduce, its static modes).
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
        """Return the bytes that one of so many ranks sends, of its gradient's."""
        others = max(0, ranks - 1)
        return self.share * (others if self.gathers else 2.0 * others / max(1, ranks))

    def hops(self, ranks: int, reductions: float) -> float:
        """Return how many messages follow each other in a step."""
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
"""A mode that somebody's own process group adds."""


def prior_of(mode: str) -> ModePrior:
    """Return what is expected of the mode."""
    return PRIORS.get(mode, UNKNOWN)
