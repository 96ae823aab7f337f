"""A knob change tried on a standby, with a control arm, before it is granted.

A script offers it through its standby::

    from torchloom_threadlet.preview import Preview

    loom = attach(preview=Preview(model, optimizer, step, load))
"""

from torchloom_threadlet.preview.rehearsal import Preview

__all__ = ["Preview"]
