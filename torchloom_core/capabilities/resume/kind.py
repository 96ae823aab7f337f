"""Resume: every paused or suspended worker continues, of one role or of all."""

from typing import cast

from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.live.capability import ActionKind, Output, Plan, Run, Stages, workers_text
from torchloom_core.live.kernel.actions.run import PAUSING, RESUMING, SUSPENDING, of_role
from torchloom_core.wire.operations import Load, Resume, Thaw
from torchloom_core.wire.suspensions import SuspensionChanged

_EARLY = "resumed before all workers had paused"


class ResumeKind(ActionKind[ResumeRun]):
    """Also ends a pause that not all workers have reached yet.

    Of a suspension, all processes run again before the first one trains.
    """

    message = ResumeRun
    operations = (Thaw, Load, Resume)

    def target(self, action: ResumeRun) -> str:
        """Return the pause."""
        return of_role(RESUMING, action.role)

    def obstacle(self, action: ResumeRun, run: Run) -> str:
        """Refuse where no worker is paused or about to pause, or suspended."""
        role = action.role
        if role and (run.pauses.of[""].verdict or "all" in run.suspensions.table):
            what = "paused" if run.pauses.of[""].verdict else "suspended"
            return f"the whole run is {what}: resume it without a role"
        for one in run.works_on(SUSPENDING):
            if role in ("", one):
                what = f"role {one}" if one else "the run"
                return f"{what} is being suspended: resume it then, or stop actions"
        begins = any(run.pauses.for_role(one).going_on for one in _roles(action, run))
        waits = run.with_role(run.rows_in("paused"), role)
        if begins or waits or any(one.state == "suspended" for one in _suspended(action, run)):
            return ""
        if left := _suspended(action, run):
            what = f"role {left[0].role}" if left[0].role else "the run"
            is_stored = left[0].depth == "stored"
            return _start_text(left[0]) if is_stored else f"{what} is being resumed"
        text = "no worker of role {} is paused or suspended" if role else "no worker is {}"
        return text.format(role or "paused or suspended")

    def stages(self, action: ResumeRun, run: Run) -> Stages:
        """Return the stages for all paused workers: that they run again, that they train."""
        rows = run.with_role(run.rows_in("paused"), action.role)
        frozen, parked = run.suspensions.frozen(rows), run.suspensions.parked(rows)
        found = [run.stage(frozen, Thaw())] if frozen else []
        found += [run.stage(parked, Load())] if parked else []
        return Stages((*found, run.stage(rows, Resume())))

    def calls_off(self, action: ResumeRun) -> tuple[str, str]:
        """Return the unfinished pause."""
        return of_role(PAUSING, action.role), _EARLY

    def granted(self, action: ResumeRun, run: Run) -> list[Output]:
        """Record that what is suspended is being resumed."""
        return run.suspensions.end(action.role)

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """End the pauses in force; those of roles that are beginning end with the next tick."""
        pauses = [run.pauses.of[role] for role in _roles(cast(ResumeRun, plan.action), run)]
        for pause in pauses:
            if pause.making:
                pause.give_up(_EARLY)
        return [output for pause in pauses for output in pause.end("")]

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Leave a parked run suspended if it could not be loaded."""
        action = cast(ResumeRun, plan.action)
        parked = trouble and run.suspensions.parked(run.suspensions.waiting(action.role))
        return run.suspensions.stay(action.role) if parked else []

    def summary(self, action: ResumeRun, plan: Plan, run: Run) -> str:
        """Return how many workers resumed, and what to start."""
        present = run.in_training()
        texts = [
            _start_text(one)
            for one in _suspended(action, run)
            if not run.with_role(present, one.role)
        ]
        if plan.commands:
            texts.insert(0, f"{workers_text(plan)} resumed")
        return "; ".join(texts) or "the pause was called off"


def _roles(action: ResumeRun, run: Run) -> list[str]:
    return [action.role] if action.role else list(run.pauses.of)


def _suspended(action: ResumeRun, run: Run) -> list[SuspensionChanged]:
    return [one for one in run.suspensions.table.values() if action.role in ("", one.role)]


def _start_text(one: SuspensionChanged) -> str:
    what = f"of role {one.role}" if one.role else "of the run"
    after = f" after step {one.step}" if one.step >= 0 else ""
    return f"start the workers {what} as before: they go on{after}"


KIND = ResumeKind()
