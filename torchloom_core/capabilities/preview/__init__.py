"""Preview: a standby trains from the run's newest state with a knob change and without it."""

from collections.abc import Iterable

import msgspec

from torchloom_core.wire.capability import Action, KnobValues
from torchloom_core.wire.operations import Rehearse
from torchloom_core.wire.preview import PreviewRequest


class PreviewChange(
    PreviewRequest,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="preview",
):
    """A standby trains with changed knobs and, as a control, without; the run is not affected.

    The standby's script must offer it, and only one standby task runs at a time. 0 ``steps`` end
    the present task.

    Examples
    --------
    >>> from torchloom_core.plugin import PreviewChange
    >>> change = PreviewChange(values={"lr": 0.02}, steps=100, repeats=5)
    >>> change.points, change.price_s(step_s=0.1)
    (1000, 100.0)
    """

    def operation(self, workers: Iterable[str], now: KnobValues) -> Rehearse:
        """Return the operation for a standby; ``now`` are the desired values of the run."""
        return Rehearse(**msgspec.structs.asdict(self), now={} if self.ends_task else now)
