"""Alert: report a condition of a worker; the run is not changed."""

import msgspec

from torchloom_core.wire.capability import Action, Target, Text


class Alert(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="alert"):
    """Report a condition of ``worker`` to people; the run is not changed.

    Examples
    --------
    >>> from torchloom_core.plugin import Alert, Proposal
    >>> alert = Alert(worker="g1-0", text="its loss is NaN")
    >>> Proposal(action=alert, reason="loss is NaN").net_gpu_s  # only an alert needs no gain
    0.0
    """

    worker: Target
    text: Text
