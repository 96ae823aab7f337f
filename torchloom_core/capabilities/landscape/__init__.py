"""Landscape: a standby maps the loss around the run's newest weights."""

from collections.abc import Iterable

import msgspec

from torchloom_core.wire.capability import Action, KnobValues
from torchloom_core.wire.landscape import LandscapeRequest
from torchloom_core.wire.operations import Survey


class MapLandscape(
    LandscapeRequest,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="landscape",
):
    """A standby maps the loss around the run's newest weights; the trainers are not involved.

    The standby's script must offer it, and only one standby task runs at a time. 0 ``points`` end
    the present task.

    Examples
    --------
    >>> from torchloom_core.plugin import MapLandscape
    >>> MapLandscape(points=400, seconds=30.0).side
    51
    """

    def operation(self, workers: Iterable[str], now: KnobValues) -> Survey:
        """Return the operation for these standbys; the desired values ``now`` are not used."""
        among = tuple(workers) if self.over > 1 else ()
        return Survey(**{**msgspec.structs.asdict(self), "among": among})
