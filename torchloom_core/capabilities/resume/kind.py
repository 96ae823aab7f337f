"""Resume: every paused worker continues, of one role or of all."""

from typing import cast

from torchloom_core.capabilities.pause.kind import RESUMING
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.live.capability import ActionKind, Output, Plan, Run, Stages, workers_text
from torchloom_core.live.kernel.actions.run import PAUSING, of_role
from torchloom_core.wire.operations import Resume

_EARLY = "resumed before all workers had paused"


class ResumeKind(ActionKind[ResumeRun]):
    """Also ends a pause that not all workers have reached yet."""

    message = ResumeRun
    operations = (Resume,)

    def target(self, action: ResumeRun) -> str:
        """Return the pause."""
        return of_role(RESUMING, action.role)

    def obstacle(self, action: ResumeRun, run: Run) -> str:
        """Refuse where no worker is paused or about to pause."""
        role = action.role
        if role and run.pauses.of[""].verdict:
            return "the whole run is paused: resume it without a role"
        begins = any(run.pauses.for_role(one).going_on for one in _roles(action, run))
        if begins or run.with_role(run.rows_in("paused"), role):
            return ""
        return f"no worker of role {role} is paused" if role else "no worker is paused"

    def stages(self, action: ResumeRun, run: Run) -> Stages:
        """Return the one stage for all paused workers."""
        return Stages((run.stage(run.with_role(run.rows_in("paused"), action.role), Resume()),))

    def calls_off(self, action: ResumeRun) -> tuple[str, str]:
        """Return the unfinished pause."""
        return of_role(PAUSING, action.role), _EARLY

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """End the pauses in force; those of roles that are beginning end with the next tick."""
        pauses = [run.pauses.of[role] for role in _roles(cast(ResumeRun, plan.action), run)]
        for pause in pauses:
            if pause.making:
                pause.give_up(_EARLY)
        return [output for pause in pauses for output in pause.end("")]

    def summary(self, action: ResumeRun, plan: Plan, run: Run) -> str:
        """Return how many workers resumed."""
        return f"{workers_text(plan)} resumed" if plan.commands else "the pause was called off"


def _roles(action: ResumeRun, run: Run) -> list[str]:
    return [action.role] if action.role else list(run.pauses.of)


KIND = ResumeKind()
