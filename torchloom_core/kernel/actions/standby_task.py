"""StandbyTask: one standby that offers it does something alone while it waits; nobody else does."""

from typing import ClassVar, TypeVar

from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import MapLandscape, PreviewChange, name_of
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import StandbyTask
from torchloom_core.wire.plans import Plan

E = TypeVar("E", bound=MapLandscape | PreviewChange)


class StandbyTaskKind(ActionKind[E]):
    """One at a time; one that leaves off ends that which is under way, by ``end_task``."""

    end_task: ClassVar[StandbyTask]
    changes_run = False

    def target(self, action: E) -> str:
        """Return the target of all standby tasks; an action that ends one has its own."""
        return f"{name_of(action)}'s end" if action.leaves_off else "standby task"

    def obstacle(self, action: E, run: Run) -> str:
        """Refuse where no standby offers it, or none is at it that could leave off."""
        if self._rows(action, run):
            return ""
        name = name_of(action)
        need = f"need attach({name}=...) in the script of a standby that is heard"
        return f"no {name} is under way" if action.leaves_off else f"no standby offers it: {need}"

    def price_gpu_s(self, action: E, run: Run) -> float:
        """Return how long it takes a standby whose steps take as long as the run's."""
        return 0.0 if action.leaves_off else action.price_s(run.guards.newest("step_time_s"))

    def stages(self, action: E, run: Run) -> Stages:
        """Return one command to each standby that it is divided over, or to all that leave off."""
        rows = self._rows(action, run)[: None if action.leaves_off else action.over]
        workers = (run.fleet.hello[row].worker for row in rows)
        operation = action.operation(workers, run.desired.of_all())
        return Stages((run.stage(rows, operation),))

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Have a standby leave off that may still be at it."""
        rows = self._at_it(run) if trouble else ()
        return run.issue(run.stage(rows, self.end_task), plan.verdict)

    def summary(self, action: E, plan: Plan, run: Run) -> str:
        """Return where it is."""
        shows = f"torchloom {name_of(action)} TRAJECTORY shows it"
        return "it was told to end" if action.leaves_off else shows

    def _rows(self, action: E, run: Run) -> list[int]:
        if action.leaves_off:
            return self._at_it(run)  # one that is silent hears it once it is back
        verb = str(self.operations[0].__struct_config__.tag)
        return run.reachable(run.able(run.rows_in("standby"), verb))

    def _at_it(self, run: Run) -> list[int]:
        told = run.commands.workers_with(*self.operations)
        return [row for worker, row in run.fleet.row_of.items() if worker in told]
