"""Landscape: a standby looks at the loss around the run's newest weights."""

from torchloom_core.kernel.actions.standby_task import StandbyTaskKind
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.messages import Survey


class LandscapeKind(StandbyTaskKind[MapLandscape]):
    """Of the loss as it is now."""

    message = MapLandscape
    operations = (Survey,)
    end_task = Survey(points=0)
