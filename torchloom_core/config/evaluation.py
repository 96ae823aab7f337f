"""``[evaluate]``: the job and the run of a backtest."""

from typing import Annotated, Literal

import msgspec

from torchloom_core.config.ranges import MOST, NotNegative, Positive, Share, UpToADay
from torchloom_core.floor.suggest import nearest


class AllreduceMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce.modes.<name>]``: how a compression mode changes a step."""

    sent: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    """Bytes that a rank sends, relative to those of ``none``; absent: the formula of
    docs/compression.md."""
    compress_s: NotNegative = 0.0
    """Time to compress and uncompress in one step."""
    link_use: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    """Share of the slowest link's bandwidth that the mode uses: several connections that share a
    link leave some of it unused."""
    quality: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Progress of one step, relative to one of ``none``: steps to a loss with ``none`` over steps
    with this mode."""


SENT_BY_FORMULA = ("none", "bf16", "fp16", "int8", "topk")
"""Modes for whose sent bytes docs/compression.md has a formula."""


class Allreduce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce]``: a run whose step time depends on a trace of bandwidth."""

    gradient_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    compute_s: Positive
    modes: Annotated[dict[str, AllreduceMode], msgspec.Meta(min_length=1)]
    start: str = "none"
    overlap: Share = 0.0
    latency_s: NotNegative = 0.0
    noise: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.03
    heartbeat_s: UpToADay = 1.0
    steps: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None

    def __post_init__(self) -> None:
        """Refuse a start that is not a mode, and a mode whose sent bytes are unknown."""
        if self.start not in self.modes:
            modes = ", ".join(self.modes)
            raise ValueError(f"start: need one of modes ({modes}), was {self.start!r}")
        for name, mode in self.modes.items():
            if mode.sent is None and name not in SENT_BY_FORMULA:
                raise ValueError(
                    f"modes.{name}: need sent: there is no formula for its bytes"
                    f"{nearest(name, SENT_BY_FORMULA)}"
                )


class Evaluate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate]``: the job that a backtest puts on the trace's nodes, and how it recovers.

    A group, a standby and a spare consist of whole nodes. ``checkpoint_interval_s`` is the work
    between two checkpoints, 0 for Daly's optimum at the trace's failure rate. ``recovery`` is
    ``restart`` (any failure stops all groups, which start again from the last checkpoint) or
    ``per_step`` (the other groups continue and only the step is lost, as with torchft). With
    ``per_step``, ``join_stall_s``, ``leave_stall_s`` and ``kill_stall_s`` are how long the other
    groups stall when a group joins, is drained, or fails. With ``allreduce`` the job is another
    one, on a trace of bandwidth.
    """

    tick_s: Annotated[float, msgspec.Meta(ge=0.001, le=MOST)] = 600.0
    days: Positive = 30.0
    groups: Annotated[int, msgspec.Meta(ge=1)] = 32
    nodes_per_group: Annotated[int, msgspec.Meta(ge=1)] = 1
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1)] = 8
    standbys: Annotated[int, msgspec.Meta(ge=0)] = 1
    spares: Annotated[int, msgspec.Meta(ge=0)] = 2
    recovery: Literal["restart", "per_step"] = "restart"
    step_s: Positive = 10.0
    checkpoint_interval_s: NotNegative = 0.0
    proactive_checkpoint_s: NotNegative = 10.0
    local_checkpoint_s: NotNegative = 0.0
    local_interval_s: Positive = 600.0
    local_restart_s: NotNegative = 30.0
    rejoin_s: NotNegative = 30.0
    join_stall_s: NotNegative = 0.0
    leave_stall_s: NotNegative = 0.0
    kill_stall_s: NotNegative = 0.0
    provision_s: NotNegative = 600.0
    warm_up_s: NotNegative = 600.0
    inspect_s: NotNegative = 3600.0
    repair_s: NotNegative = 86_400.0
    command_s: NotNegative = 1.0
    forecast_s: NotNegative = 1.0
    allreduce: Allreduce | None = None
