"""The options of ``[policies.allreduce_tuner]``."""

from typing import Annotated

import msgspec

from torchloom_core.plugin import NotNegative, Positive

Quality = Annotated[float, msgspec.Meta(ge=1e-3, le=1)]

QUALITY = {"none": 1.0, "bf16": 1.0, "fp16": 1.0, "int8": 1.0, "topk": 0.35, "powersgd": 0.5}
"""By experiments/compression, the steps that ``none`` needs to the loss that a mode has after 300,
over 300: 1, 1, 1, 1, .40, .68; powersgd that is not told the model's matrices .25."""


class AllreduceTunerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of ``[policies.allreduce_tuner]``.

    Attributes
    ----------
    modes : list of str
        Modes that may be proposed, each once; those that the knob does not offer are left out.
    quality : dict of str to float
        Progress of a step in a mode, of a step in ``none``: from .001 to 1. A mode with less than 1
        is proposed only where the guard's metric is reported. What is not named keeps its default.
    hysteresis : float
        The share by which another setting must make more progress a second.
    settle_steps : int
        Steps after a change that are measured before the next one.
    horizon_s : float
        For how long a change is taken to be worth something, seconds.
    explore_gpu_s : float
        GPU-seconds that trials of what was never measured may cost altogether.
    probe_bytes : int
        What one probe sends at the most: no more than a link carries in 40 ms, and 640 KiB.
    probe_every_s : float
        How long one round of probes at least follows another; 0: links are not probed.
    probe_wire_share : float
        Links are probed only while a step's bytes keep them busy for less than this share of it.
    guard_metric, guard_band, guard_window_s : str, float, float
        What watches over each change, where anyone reports the metric: see ``Guard``. The window
        is no shorter than ten steps.
    ring : bool
        Whether the ring's order is tuned, which needs the extra ``tuner``.
    concurrency : bool
        Whether other numbers of pieces and sizes of buckets are tried.
    sync_cost : float
        Progress of a step under LocalSGD and DiLoCo is taken to fall as ``sync_every`` to the
        power of minus this.
    cooldown_s : float
        How long a change that was not made is not proposed again, unless the bandwidth has
        changed by half.
    forgive_s : float
        How long a mode that hurt, or was slow at this bandwidth, is not tried again, and what else
        a guard took back.
    penalty : float
        What a mode's quality is multiplied by when the guard has taken it back.
    """

    modes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=32)] = tuple(QUALITY)
    quality: dict[str, Quality] = {}
    hysteresis: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.07
    settle_steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    horizon_s: Positive = 300.0
    explore_gpu_s: NotNegative = 600.0
    probe_bytes: Annotated[int, msgspec.Meta(ge=640 * 1024, le=8 << 20)] = 1 << 20
    probe_every_s: NotNegative = 2.0
    probe_wire_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    guard_metric: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] = "loss"
    guard_band: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.0
    guard_window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    ring: bool = True
    concurrency: bool = True
    sync_cost: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.15
    cooldown_s: NotNegative = 30.0
    forgive_s: NotNegative = 3600.0
    penalty: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.5

    def __post_init__(self) -> None:
        """Refuse a mode that is named twice."""
        twice = next((mode for mode in self.modes if self.modes.count(mode) > 1), None)
        if twice is not None:
            raise ValueError(f"modes: need each mode once, was {twice} twice")
