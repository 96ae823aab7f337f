"""Landscape: a standby maps the loss around the run's newest weights."""

from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.capabilities.standby_task import StandbyTaskKind
from torchloom_core.wire.operations import Survey


class LandscapeKind(StandbyTaskKind):
    """The loss landscape of the present weights."""

    message = MapLandscape
    operations = (Survey,)
    end_task = Survey(points=0)


KIND = LandscapeKind()
