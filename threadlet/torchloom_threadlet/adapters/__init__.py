"""Training frameworks, one folder each, behind one protocol, :class:`Adapter`."""

from torchloom_threadlet.adapters.adapter import Adapter, Diverged

__all__ = ["Adapter", "Diverged"]
