"""Admit: a standby group joins the run for good, in addition to the present groups."""

import msgspec

from torchloom_core.wire.capability import Action, Target


class AdmitGroup(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="admit"):
    """The standby ``group`` joins the run for good, in addition to the present groups.

    Examples
    --------
    >>> from torchloom_core.plugin import AdmitGroup
    >>> AdmitGroup(group="g3")
    AdmitGroup(group='g3')
    """

    group: Target
