"""Landscape: a standby maps the loss around the run's newest weights."""

from torchloom_core.live.kernel.actions.standby_task import StandbyTaskKind
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.messages import Survey


class LandscapeKind(StandbyTaskKind[MapLandscape]):
    """The loss landscape of the present weights."""

    message = MapLandscape
    operations = (Survey,)
    end_task = Survey(points=0)
