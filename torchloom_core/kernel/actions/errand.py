"""Errand: one stand-by that offers it does something alone while it waits; nobody else does."""

from typing import ClassVar, TypeVar

from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import MapLandscape, PreviewChange, name_of
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Errand
from torchloom_core.wire.plans import Plan

E = TypeVar("E", bound=MapLandscape | PreviewChange)


class ErrandKind(ActionKind[E]):
    """One at a time; one that leaves off ends that which is under way, by ``leave_off``."""

    leave_off: ClassVar[Errand]
    changes_run = False

    def target(self, action: E) -> str:
        """Return the target of all errands; what ends one has another: nothing is in its way."""
        return f"{name_of(action)}'s end" if action.leaves_off else "errand"

    def obstacle(self, action: E, run: Run) -> str:
        """Refuse where no stand-by offers it, or none is at it that could leave off."""
        if self._rows(action, run):
            return ""
        name = name_of(action)
        need = f"need attach({name}=...) in the script of a stand-by that is heard"
        return f"no {name} is under way" if action.leaves_off else f"no stand-by offers it: {need}"

    def price_gpu_s(self, action: E, run: Run) -> float:
        """Return how long it takes a stand-by whose steps take as long as the run's."""
        return 0.0 if action.leaves_off else action.price_s(run.guards.newest("step_time_s"))

    def stages(self, action: E, run: Run) -> Stages:
        """Return the one command to one stand-by."""
        deed = action.deed(run.desired.of_all())
        return Stages((run.stage(self._rows(action, run)[:1], deed),))

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Have a stand-by leave off that may still be at it."""
        rows = self._at_it(run) if trouble else ()
        return run.tell(run.stage(rows, self.leave_off), plan.verdict)

    def summary(self, action: E, plan: Plan, run: Run) -> str:
        """Return where it is."""
        shows = f"torchloom {name_of(action)} TRAJECTORY shows it"
        return "it was told to end" if action.leaves_off else shows

    def _rows(self, action: E, run: Run) -> list[int]:
        if action.leaves_off:
            return self._at_it(run)  # one that is silent hears it once it is back
        verb = str(self.deeds[0].__struct_config__.tag)
        return run.heard(run.able(run.rows_in("standby"), verb))

    def _at_it(self, run: Run) -> list[int]:
        told = run.commands.being_told(*self.deeds)
        return [row for worker, row in run.fleet.row_of.items() if worker in told]
