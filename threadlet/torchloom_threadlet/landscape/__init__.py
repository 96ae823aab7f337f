"""The loss landscape around the weights: along a line and in a plane, and its curvature.

A script offers it through its standby::

    from torchloom_threadlet.landscape import Landscape

    loom = attach(landscape=Landscape(model, loss, load))
"""

from torchloom_threadlet.landscape.survey import Landscape

__all__ = ["Landscape"]
