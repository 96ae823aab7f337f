"""A change tried out on a standby, with a control arm, before anybody grants it.

A script offers its standby for it::

    from torchloom_threadlet.preview import Preview

    loom = attach(preview=Preview(model, optimizer, step, load))
"""

from torchloom_threadlet.preview.rehearsal import Preview

__all__ = ["Preview"]
