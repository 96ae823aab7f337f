"""StandbyTask: a standby does a task while it waits; the run is not affected."""

from typing import Any, ClassVar

from torchloom_core.live.capability import ActionKind, Output, Plan, Run, Stages
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.operations import StandbyTask
from torchloom_core.wire.placement import TRAINER


class StandbyTaskKind(ActionKind[Any]):
    """One at a time; an action that ends the present task sends ``end_task``."""

    end_task: ClassVar[StandbyTask]
    changes_run = False

    def target(self, action: Any) -> str:
        """Return the target of all standby tasks; an action that ends one has its own."""
        return f"{name_of(action)}'s end" if action.ends_task else "standby task"

    def obstacle(self, action: Any, run: Run) -> str:
        """Refuse where no standby offers the task, or there is none to end."""
        if self._rows(action, run):
            return ""
        name = name_of(action)
        if action.ends_task:
            return f"no {name} is under way"
        return f"no reachable standby offers it: need attach({name}=...) in its script"

    def price_gpu_s(self, action: Any, run: Run) -> float:
        """Return how long it takes a standby whose steps are as long as the run's."""
        step_s = run.guards.newest("step_time_s", self.role(run))
        return 0.0 if action.ends_task else action.price_s(step_s)

    def stages(self, action: Any, run: Run) -> Stages:
        """Return one command to each standby that takes part, or to all that end the task."""
        rows = self._rows(action, run)[: None if action.ends_task else action.over]
        workers = (run.fleet.hello[row].worker for row in rows)
        operation = action.operation(workers, run.desired.of_all(self.role(run)))
        return Stages((run.stage(rows, operation),))

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """End the task on a standby that may still run it."""
        rows = self._running(run) if trouble else ()
        return run.issue(run.stage(rows, self.end_task), plan.verdict)

    def summary(self, action: Any, plan: Plan, run: Run) -> str:
        """Return how to show the result."""
        shows = f"torchloom {name_of(action)} TRAJECTORY shows it"
        return "end requested" if action.ends_task else shows

    def _rows(self, action: Any, run: Run) -> list[int]:
        if action.ends_task:
            return self._running(run)  # an unreachable one gets the command when it is back
        return run.with_role(self._offering(run), self.role(run))

    def role(self, run: Run) -> str:
        """Return the role of the standbys that take part: that of the first which offers it."""
        rows = self._offering(run)
        return run.fleet.hello[rows[0]].role if rows else TRAINER

    def _offering(self, run: Run) -> list[int]:
        verb = str(self.operations[0].__struct_config__.tag)
        return run.reachable(run.able(run.rows_in("standby"), verb))

    def _running(self, run: Run) -> list[int]:
        workers = run.commands.workers_with(*self.operations)
        return [row for worker, row in run.fleet.row_of.items() if worker in workers]
