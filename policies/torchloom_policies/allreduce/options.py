"""The options of ``[policies.allreduce_tuner]``."""

from typing import Annotated

import msgspec

from torchloom_core.plugin import NotNegative, Positive

Quality = Annotated[float, msgspec.Meta(ge=1e-3, le=1)]

QUALITY = {"none": 1.0, "bf16": 1.0, "fp16": 1.0, "int8": 1.0, "topk": 0.35, "powersgd": 0.5}
"""Below the values of experiments/compression, the steps that ``none`` needs to reach a mode's loss
after 300 steps, over 300: 1, 1, 1, 1, .40, .68; powersgd without ``parameters`` .25."""


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
