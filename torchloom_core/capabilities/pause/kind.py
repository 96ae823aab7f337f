"""Pause: every training worker, of one role or of all, waits at a step boundary, or none does."""

from typing import cast

from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.live.capability import (
    ActionKind,
    Output,
    Plan,
    Run,
    Stages,
    cannot_agree,
    fenced_stages,
    missed_text,
    workers_text,
)
from torchloom_core.live.fleet.run_pause import RunPause
from torchloom_core.live.kernel.actions.run import PAUSING, RESUMING, SUSPENDING, of_role
from torchloom_core.wire.operations import Pause

_LASTS = "they resume by themselves if this Weaver is unreachable for 3 s"


class PauseKind(ActionKind[PauseRun]):
    """Workers pause at one step if all can agree on it, else each at its own.

    :mod:`~torchloom_core.live.fleet.run_pause` has the details.
    """

    message = PauseRun
    operations = (Pause,)
    high_impact = True
    all_or_none = True

    def target(self, action: PauseRun) -> str:
        """Return the run, or its role."""
        return of_role(PAUSING, action.role)

    def obstacle(self, action: PauseRun, run: Run) -> str:
        """Refuse a second pause, also of a part, and a pause without a training worker."""
        role = action.role
        run.pauses.for_role(role)
        for one in ["", role] if role else list(run.pauses.of):
            what = f"role {one}" if one else "the run"
            if run.pauses.of[one].verdict:
                return f"{what} is already paused: resume it first"
            if run.plans.on(of_role(RESUMING, one)):
                return f"{what} is being resumed"
            if one != role and run.plans.on(of_role(PAUSING, one)):
                return f"{what} is being paused"
            if run.plans.on(of_role(SUSPENDING, one)):
                return f"{what} is being suspended"
        roles = frozenset({role} if role else ())
        return run.suspensions.refusal(roles) or run.no_role(role)

    def stages(self, action: PauseRun, run: Run) -> Stages:
        """Return the one stage, for paused workers as well: they may just have been resumed."""
        roles = {action.role} if action.role else frozenset()
        if not cannot_agree("a pause", run, roles):
            return fenced_stages(Pause(), run, role=action.role)
        return Stages((run.stage(run.in_training(roles), Pause()),))

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Expect all workers to pause."""
        _of(plan, run).make(plan.verdict, [worker for worker, _ in plan.stages[0].incarnations])
        return []

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return which workers did not pause, or paused at another step."""
        return missed_text(plan) if plan.missed else _of(plan, run).trouble(run.now_ns)

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Put the pause in force, or call it off."""
        return _of(plan, run).settle(trouble)

    def restored(self, plan: Plan, run: Run) -> None:
        """Give up an unfinished pause."""
        pause = _of(plan, run)
        pause.make(plan.verdict, ())
        pause.give_up("the Weaver restarted before all workers had paused")

    def summary(self, action: PauseRun, plan: Plan, run: Run) -> str:
        """Return how many workers paused, at which step, and how the pause ends."""
        at_step, role = run.pauses.for_role(action.role).step_text(), action.role
        resume = f"torchloom resume --role {role}" if role else "torchloom resume"
        return f"{workers_text(plan)} paused{at_step}, until {resume}; {_LASTS}"


def _of(plan: Plan, run: Run) -> RunPause:
    return run.pauses.for_role(cast(PauseRun, plan.action).role)


KIND = PauseKind()
