"""Landscape: a stand-by looks at the loss around the run's newest weights; nobody else does."""

from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Survey
from torchloom_core.wire.plans import Plan


class LandscapeKind(ActionKind[MapLandscape]):
    """One at a time; one of no points ends that which is under way."""

    message = MapLandscape
    deeds = (Survey,)
    changes_run = False

    def target(self, action: MapLandscape) -> str:
        """Return the landscape; what ends it has another, so that nothing is in its way."""
        return "landscape" if action.points else "landscape's end"

    def obstacle(self, action: MapLandscape, run: Run) -> str:
        """Refuse where no stand-by offers it, or none is at it that could leave off."""
        if _rows(action, run):
            return ""
        need = "need attach(landscape=...) in the script of a stand-by that is heard"
        return f"no stand-by offers it: {need}" if action.points else "no landscape is under way"

    def stages(self, action: MapLandscape, run: Run) -> Stages:
        """Return the one command to one stand-by."""
        return Stages((run.stage(_rows(action, run)[:1], action.deed),))

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Have a stand-by leave off that may still be at it."""
        rows = _at_it(run) if trouble else ()
        return run.tell(run.stage(rows, Survey(points=0)), plan.verdict)

    def summary(self, action: MapLandscape, plan: Plan, run: Run) -> str:
        """Return where it is."""
        return "torchloom landscape TRAJECTORY shows it" if action.points else "it was told to end"


def _rows(action: MapLandscape, run: Run) -> list[int]:
    able = run.able(run.rows_in("standby"), "survey") if action.points else _at_it(run)
    return [row for row in able if run.fleet.heard_ns_of(row) >= run.now_ns - run.stale_ns]


def _at_it(run: Run) -> list[int]:
    told = run.commands.being_told(Survey)
    return [row for worker, row in run.fleet.row_of.items() if worker in told]
