"""The table ``[trajectory]``: how long telemetry is kept at which resolution."""

from typing import Annotated

import msgspec

from torchloom_core.config.ranges import NotNegative

LOW_SHARE = 0.05
"""``low_gib`` is at most this share of the disk."""

_Hours = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Interval = Annotated[float, msgspec.Meta(ge=1, le=86_400)]


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[trajectory]``: with this table old telemetry is thinned; without it nothing is deleted."""

    raw_h: _Hours = 48.0
    """Raw telemetry is kept this long; older telemetry is thinned to ``thin_s``."""
    thin_s: _Interval = 60.0
    coarse_h: _Hours = 336.0
    """Telemetry older than this is thinned to ``coarse_s``."""
    coarse_s: _Interval = 600.0
    budget_gib: NotNegative = 100.0
    """Maximum size of the run's trajectory; 0: none. Beyond it telemetry is thinned early."""
    low_gib: NotNegative = 1.0
    """Free space of the disk below which telemetry is thinned early."""
    every_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 600.0

    def __post_init__(self) -> None:
        """Refuse ages and intervals that do not ascend."""
        if self.coarse_h < self.raw_h:
            raise ValueError(
                f"coarse_h: need at least raw_h ({self.raw_h:g}), was {self.coarse_h:g}"
            )
        if self.coarse_s % self.thin_s:
            raise ValueError(
                f"coarse_s: need a multiple of thin_s ({self.thin_s:g}), was {self.coarse_s:g}"
            )
