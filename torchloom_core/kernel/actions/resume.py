"""Resume: every paused worker goes on."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.kernel.actions.kind import ActionKind, Stages, workers_text
from torchloom_core.kernel.actions.pause import PAUSING, RESUMING
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import ResumeRun
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Resume
from torchloom_core.wire.plans import Plan


class ResumeKind(ActionKind[ResumeRun]):
    """Also while the pause is still being made."""

    message = ResumeRun
    deeds = (Resume,)

    def target(self, action: ResumeRun) -> str:
        """Return the pause."""
        del action
        return RESUMING

    def obstacle(self, action: ResumeRun, run: Run) -> str:
        """Refuse where nobody is paused, or about to be."""
        del action
        if run.pauses.going_on or run.rows_in("paused"):
            return ""
        return "no worker is paused"

    def stages(self, action: ResumeRun, run: Run) -> Stages:
        """Return the one stage of all that are paused."""
        del action
        return Stages((run.stage(run.rows_in("paused"), Resume()),))

    def calls_off(self, action: ResumeRun) -> tuple[str, str]:
        """Return the pause that is being made."""
        del action
        return PAUSING, "resumed before all had paused"

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """End the pause in force."""
        del plan
        return run.pauses.end("")

    def summary(self, plan: Plan, run: Run) -> str:
        """Return how many went on."""
        del run
        return f"{workers_text(plan)} resumed" if plan.commands else "the pause was called off"

    def wish(self, action: Mapping[str, Any]) -> str:
        """Return ``resume``."""
        del action
        return "resume"
