"""Pause: every training worker waits at its next step boundary, or none does."""

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
from torchloom_core.live.kernel.actions.run import PAUSING
from torchloom_core.wire.operations import Pause

RESUMING = "pause"

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
        """Return the run."""
        return PAUSING

    def obstacle(self, action: PauseRun, run: Run) -> str:
        """Refuse a second pause, and a pause without a training worker."""
        if run.pauses.verdict:
            return "the run is already paused: resume it first"
        if run.plans.on(RESUMING):
            return "the run is being resumed"
        return "" if run.rows_in("training", "paused") else "no worker is training"

    def stages(self, action: PauseRun, run: Run) -> Stages:
        """Return the one stage, for paused workers as well: they may just have been resumed."""
        if not cannot_agree("a pause", run):
            return fenced_stages(Pause(), run)
        return Stages((run.stage(run.rows_in("training", "paused"), Pause()),))

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Expect all workers to pause."""
        run.pauses.make(plan.verdict, [worker for worker, _ in plan.stages[0].incarnations])
        return []

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return which workers did not pause, or paused at another step."""
        return missed_text(plan) if plan.missed else run.pauses.trouble(run.now_ns)

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Put the pause in force, or call it off."""
        return run.pauses.settle(trouble)

    def restored(self, plan: Plan, run: Run) -> None:
        """Give up an unfinished pause."""
        run.pauses.make(plan.verdict, ())
        run.pauses.give_up("the Weaver restarted before all workers had paused")

    def summary(self, action: PauseRun, plan: Plan, run: Run) -> str:
        """Return how many workers paused, at which step, and how the pause ends."""
        at_step = run.pauses.step_text()
        return f"{workers_text(plan)} paused{at_step}, until torchloom resume; {_LASTS}"


KIND = PauseKind()
