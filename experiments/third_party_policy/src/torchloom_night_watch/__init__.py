"""Save a checkpoint when the whole room gets hot at night, before it trips.

When the cooling fails, all nodes warm up together: there is nowhere to migrate to, and at
night no person is on site. Only the work can be saved.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np
from torchloom_core.plugin import (
    FleetView,
    Need,
    NotNegative,
    Proposal,
    Registry,
    SaveCheckpoint,
    Share,
    hookimpl,
)

Hour = Annotated[int, msgspec.Meta(ge=0, le=23)]


class NightWatch:
    """Propose one checkpoint each time the median GPU crosses ``limit_celsius`` at night.

    Armed again once the median is ``hysteresis_celsius`` below the limit.
    """

    name = "night_watch"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.night_watch]``.

        Attributes
        ----------
        limit_celsius : float
            Median temperature of the training GPUs at which the work is saved.
        hysteresis_celsius : float
            How far the median must fall below the limit before it can fire again.
        from_hour, to_hour : int
            The night, hours UTC, 0 to 23; it may span midnight.
        lost_s : float
            Work that is lost if the room trips without a checkpoint, seconds.
        confidence : float
            Probability that a room this hot trips, 0 to 1.
        """

        limit_celsius: float = 80.0
        hysteresis_celsius: NotNegative = 5.0
        from_hour: Hour = 20
        to_hour: Hour = 6
        lost_s: NotNegative = 1800.0
        confidence: Share = 0.3

    def __init__(self, options: Options) -> None:
        self._options = options
        self._armed = True
        self.needs = (Need("gpu_temp_celsius"),)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the median once a tick."""
        options = self._options
        training = view.is_in("training")
        celsius = view.latest("gpu_temp_celsius")[training]
        if np.isnan(celsius).all():
            return
        median = float(np.nanmedian(celsius))
        if median <= options.limit_celsius - options.hysteresis_celsius:
            self._armed = True
        if median > options.limit_celsius and self._armed and self._is_night(view.now_s):
            self._armed = False
            gpus = view.costs.gpus_per_worker * np.count_nonzero(training)
            yield Proposal(
                action=SaveCheckpoint(),
                reason=(
                    f"half of {gpus:g} GPUs are above {median:.0f} degrees at night, the limit is "
                    f"{options.limit_celsius:g}: the room may trip"
                ),
                gain_gpu_s=options.lost_s * gpus,
                cost_gpu_s=view.costs.checkpoint_s * gpus,
                confidence=options.confidence,
            )

    def _is_night(self, now_s: float) -> bool:
        """Return whether it is night; time comes from the view, never from a clock."""
        hour = int(now_s // 3600) % 24
        since_dusk = (hour - self._options.from_hour) % 24
        return since_dusk < (self._options.to_hour - self._options.from_hour) % 24


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy; ``[policies.night_watch]`` in torchloom.toml enables it."""
    registry.policy(NightWatch)
