"""The loss around the weights: what it is along a line and in a plane, and how sharply it bends.

A script offers its standby for it::

    from torchloom_threadlet.landscape import Landscape

    loom = attach(landscape=Landscape(model, loss, load))
"""

from torchloom_threadlet.landscape.survey import Landscape

__all__ = ["Landscape"]
