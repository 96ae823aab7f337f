"""Resume: every paused worker continues."""

import msgspec

from torchloom_core.wire.capability import Action


class ResumeRun(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="resume"):
    """Resume every paused worker.

    Examples
    --------
    >>> from torchloom_core.plugin import ResumeRun
    >>> ResumeRun()
    ResumeRun()
    """
