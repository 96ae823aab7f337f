"""Suspend: every training worker, of one role or of all, gives up its machine until resumed."""

from typing import cast

from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.live.capability import (
    ActionKind,
    Output,
    Plan,
    Run,
    Stage,
    Stages,
    cannot_agree,
    fenced_stages,
    landed_text,
    workers_text,
)
from torchloom_core.live.kernel.actions.run import SUSPENDING, of_role
from torchloom_core.wire.operations import (
    Drain,
    FencedChange,
    Freeze,
    Operation,
    Park,
    Store,
    Suspend,
)

_THEN: dict[str, tuple[type[Operation], ...]] = {
    "frozen": (Freeze,),
    "parked": (Park,),
    "stored": (Store, Drain),
}
_NOW = {
    "frozen": "frozen{step}",
    "parked": "parked{step}, with the state in the memory of their nodes",
    "stored": "stored{step}, and ended",
}


class SuspendKind(ActionKind[SuspendRun]):
    """Workers agree on a step at which all wait; what follows is done by all, or all go on.

    :mod:`~torchloom_core.live.fleet.suspensions` has what is suspended.
    """

    message = SuspendRun
    operations = (FencedChange, Freeze, Park, Store, Drain)
    high_impact = True
    all_or_none = True

    def target(self, action: SuspendRun) -> str:
        """Return the suspension of the run, or of its role."""
        return of_role(SUSPENDING, action.role)

    def obstacle(self, action: SuspendRun, run: Run) -> str:
        """Refuse what is suspended, also in part, and ranks that cannot agree on a step."""
        roles = frozenset({action.role} if action.role else ())
        return (
            run.suspensions.refusal(roles)
            or run.changes_pause(action.role)
            or run.no_role(action.role)
            or cannot_agree("a suspension", run, roles)
        )

    def stages(self, action: SuspendRun, run: Run) -> Stages:
        """Return the agreed wait, and what its depth adds."""
        first = fenced_stages(Suspend(depth=action.depth), run, role=action.role).stages[0]
        sent_to = first.incarnations
        then = (Stage(operation=of(), incarnations=sent_to) for of in _THEN[action.depth])
        return Stages((first, *then))

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Record the suspension; after trouble, as one that is being resumed."""
        action = cast(SuspendRun, plan.action)
        suspensions, waiting = run.suspensions, run.suspensions.waiting(action.role)
        if trouble and not waiting:
            return []
        step = plan.landed[-1] if plan.landed else -1
        by = plan.verdict, plan.policy
        outputs = suspensions.begin(action.role, action.depth, by, step, waiting, run.now_ns)
        return [*outputs, *suspensions.end(action.role, trouble)] if trouble else outputs

    def summary(self, action: SuspendRun, plan: Plan, run: Run) -> str:
        """Return how many workers are suspended, at which step, and how it ends."""
        resume = f"torchloom resume --role {action.role}" if action.role else "torchloom resume"
        now = _NOW[action.depth].format(step=landed_text(plan))
        return f"{workers_text(plan)} {now}, until {resume}"


KIND = SuspendKind()
