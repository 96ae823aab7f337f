"""Resume: every paused worker continues, of one role or of all."""

import msgspec

from torchloom_core.wire.capability import Action, RoleName


class ResumeRun(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="resume",
):
    """Resume every paused worker, of one role if ``role`` is given.

    Examples
    --------
    >>> from torchloom_core.plugin import ResumeRun
    >>> ResumeRun(role="rollout")
    ResumeRun(role='rollout')
    """

    role: RoleName = ""
