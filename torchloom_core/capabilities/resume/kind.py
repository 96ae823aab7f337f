"""Resume: every paused worker continues."""

from torchloom_core.capabilities.pause.kind import RESUMING
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.live.capability import ActionKind, Output, Plan, Run, Stages, workers_text
from torchloom_core.live.kernel.actions.run import PAUSING
from torchloom_core.wire.operations import Resume


class ResumeKind(ActionKind[ResumeRun]):
    """Also ends a pause that not all workers have reached yet."""

    message = ResumeRun
    operations = (Resume,)

    def target(self, action: ResumeRun) -> str:
        """Return the pause."""
        return RESUMING

    def obstacle(self, action: ResumeRun, run: Run) -> str:
        """Refuse where no worker is paused or about to pause."""
        if run.pauses.going_on or run.rows_in("paused"):
            return ""
        return "no worker is paused"

    def stages(self, action: ResumeRun, run: Run) -> Stages:
        """Return the one stage for all paused workers."""
        return Stages((run.stage(run.rows_in("paused"), Resume()),))

    def calls_off(self, action: ResumeRun) -> tuple[str, str]:
        """Return the unfinished pause."""
        return PAUSING, "resumed before all workers had paused"

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """End the pause in force."""
        return run.pauses.end("")

    def summary(self, action: ResumeRun, plan: Plan, run: Run) -> str:
        """Return how many workers resumed."""
        return f"{workers_text(plan)} resumed" if plan.commands else "the pause was called off"


KIND = ResumeKind()
