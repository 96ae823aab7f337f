"""Pause: every training worker, of one role or of all, waits at a step boundary, or none does."""

import msgspec

from torchloom_core.wire.capability import Action, RoleName


class PauseRun(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="pause",
):
    """Pause every training worker at its next step boundary, of one role if ``role`` is given.

    Examples
    --------
    >>> from torchloom_core.plugin import PauseRun
    >>> PauseRun(), PauseRun(role="rollout")
    (PauseRun(role=''), PauseRun(role='rollout'))
    """

    role: RoleName = ""
