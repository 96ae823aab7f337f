"""The tuner's options, and the prior cost and quality of each compression mode."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from torchloom_core.plugin import NotNegative, Positive

Quality = Annotated[float, msgspec.Meta(ge=1e-3, le=1)]


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

QUALITY = {"none": 1.0, "bf16": 1.0, "fp16": 1.0, "int8": 1.0, "topk": 0.35, "powersgd": 0.5}
"""Below the values of experiments/compression, the steps that ``none`` needs to reach a mode's loss
after 300 steps, over 300: 1, 1, 1, 1, .40, .68; powersgd without ``parameters`` .25."""

UNKNOWN = ModePrior(1.0, 2, 2.0, share_log_sd=1.5, code_log_sd=1.0)
"""A mode that a custom process group adds."""


def prior_of(mode: str) -> ModePrior:
    """Return the prior of the mode."""
    return PRIORS.get(mode, UNKNOWN)


class AllreduceTunerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of ``[policies.allreduce_tuner]``."""

    modes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=32)] = tuple(QUALITY)
    """Modes that may be proposed, each once; those that the knob does not offer are ignored."""
    quality: dict[str, Quality] = {}
    """Progress of a step in a mode relative to ``none``, .001 to 1. A mode below 1 is proposed only
    where the guard's metric is reported. Modes not listed keep their default."""
    hysteresis: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.07
    """Share by which another setting must raise progress per second."""
    settle_steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    """Steps measured after a change, before the next one."""
    horizon_s: Positive = 300.0
    """Time over which the gain of a change is counted, seconds."""
    explore_gpu_s: NotNegative = 600.0
    """Total cost allowed for trials of settings that were never measured, GPU-seconds."""
    probe_bytes: Annotated[int, msgspec.Meta(ge=640 * 1024, le=8 << 20)] = 1 << 20
    """Maximum size of a probe; a probe also takes at most 40 ms of the link, but 640 KiB at
    least."""
    probe_every_s: NotNegative = 2.0
    """Minimum time between two rounds of probes, seconds; 0: links are not probed."""
    probe_wire_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    """Links are probed only while a step's bytes keep them busy for less than this share of it."""
    guard_metric: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] = "loss"
    guard_band: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.0
    guard_window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    """The guard of each change, if a worker reports the metric: see ``Guard``. The window lasts at
    least ten steps."""
    ring: bool = True
    """Whether to tune the order of the ring, which needs the extra ``tuner``."""
    concurrency: bool = True
    """Whether to try other numbers of pieces and sizes of buckets."""
    sync_cost: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.15
    """Under LocalSGD and DiLoCo the progress of a step is modelled as ``sync_every`` to the power
    of minus this."""
    cooldown_s: NotNegative = 30.0
    """A change that was not applied is proposed again after this time, seconds, or once the
    bandwidth has changed by half."""
    forgive_s: NotNegative = 3600.0
    """How long a change is excluded after a rollback by a guard, and a mode also after it was slow
    at this bandwidth, seconds."""
    penalty: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.5
    """Factor on a mode's quality after a rollback by a guard."""

    def __post_init__(self) -> None:
        """Refuse a mode that is named twice."""
        twice = next((mode for mode in self.modes if self.modes.count(mode) > 1), None)
        if twice is not None:
            raise ValueError(f"modes: need each mode once, was {twice} twice")
