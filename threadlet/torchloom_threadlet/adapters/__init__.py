"""Training frameworks, one folder each, behind one protocol, :class:`Adapter`."""

from torchloom_threadlet.adapter import Adapter, Diverged

__all__ = ["Adapter", "Diverged"]
