"""Rewind: all ranks return to the last checkpoint at one step, and skip batches from there."""

from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.live.capability import (
    ActionKind,
    Plan,
    Run,
    Stages,
    cannot_agree,
    fenced_stages,
    landed_text,
    listed,
    workers_text,
)
from torchloom_core.live.kernel.actions.run import NAMED, of_role
from torchloom_core.wire.operations import FencedChange, Rewind


class RewindKind(ActionKind[RewindRun]):
    """The script's own function loads the checkpoint."""

    message = RewindRun
    operations = (FencedChange,)
    high_impact = True

    def target(self, action: RewindRun) -> str:
        """Return the one target of all rewinds of a role."""
        return of_role("rewind", action.role)

    def obstacle(self, action: RewindRun, run: Run) -> str:
        """Refuse where a rank cannot rewind, or not at the same step as the others."""
        roles = {action.role} if action.role else frozenset()
        if problem := run.no_role(action.role) or cannot_agree("a rewind", run, roles):
            return problem
        voters = run.voters(roles)
        unable = sorted(set(voters).difference(run.able(voters, "rewind")))
        if not unable:
            return ""
        names = listed([run.fleet.hello[row].worker for row in unable], NAMED)
        return f"{names} cannot rewind: need a function registered with loom.on_rewind"

    def stages(self, action: RewindRun, run: Run) -> Stages:
        """Return the one stage for all ranks that can agree."""
        return fenced_stages(Rewind(skip=action.skip), run, role=action.role)

    def summary(self, action: RewindRun, plan: Plan, run: Run) -> str:
        """Return how many workers rewound, and at which step."""
        skipped = f", skipping {action.skip} batches" if action.skip else ""
        return f"{workers_text(plan)} rewound{landed_text(plan)}{skipped}"


KIND = RewindKind()
