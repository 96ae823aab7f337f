"""Landscape: a stand-by looks at the loss around the run's newest weights."""

from torchloom_core.kernel.actions.errand import ErrandKind
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.messages import Survey


class LandscapeKind(ErrandKind[MapLandscape]):
    """Of the loss as it is now."""

    message = MapLandscape
    deeds = (Survey,)
    leave_off = Survey(points=0)
