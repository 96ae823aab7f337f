"""Preview: a standby trains from the run's newest state with a knob change and without it."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.capabilities.standby_task import StandbyTaskKind
from torchloom_core.floor.errors import KnobError
from torchloom_core.live.capability import Run
from torchloom_core.wire.knobs import check_value
from torchloom_core.wire.operations import Rehearse


class PreviewKind(StandbyTaskKind):
    """The change itself is not made, so its knobs may be worker-fenced."""

    message = PreviewChange
    operations = (Rehearse,)
    end_task = Rehearse(steps=0)

    def obstacle(self, action: PreviewChange, run: Run) -> str:
        """Refuse also values that the run's knobs do not accept."""
        try:
            for knob, value in action.values.items():
                check_value(run.spec(knob, self.role(run)), value)
        except KnobError as error:
            return str(error)
        return super().obstacle(action, run)

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``preview lr = 0.1``."""
        values = ", ".join(f"{knob} = {value}" for knob, value in action.get("values", {}).items())
        return f"preview {values or 'of no change' if action.get('steps', 1) else 'end'}"


KIND = PreviewKind()
