"""Resume: every paused worker goes on."""

from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.pause import PAUSING, RESUMING
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import ResumeRun
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Resume
from torchloom_core.wire.plans import Plan, workers_text


class ResumeKind(ActionKind[ResumeRun]):
    """Also while the pause is still being made."""

    message = ResumeRun
    operations = (Resume,)

    def target(self, action: ResumeRun) -> str:
        """Return the pause."""
        return RESUMING

    def obstacle(self, action: ResumeRun, run: Run) -> str:
        """Refuse where nobody is paused, or about to be."""
        if run.pauses.going_on or run.rows_in("paused"):
            return ""
        return "no worker is paused"

    def stages(self, action: ResumeRun, run: Run) -> Stages:
        """Return the one stage of all that are paused."""
        return Stages((run.stage(run.rows_in("paused"), Resume()),))

    def calls_off(self, action: ResumeRun) -> tuple[str, str]:
        """Return the pause that is being made."""
        return PAUSING, "resumed before all had paused"

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """End the pause in force."""
        return run.pauses.end("")

    def summary(self, action: ResumeRun, plan: Plan, run: Run) -> str:
        """Return how many went on."""
        return f"{workers_text(plan)} resumed" if plan.commands else "the pause was called off"
