"""Keep the workers as desired: their knobs set, their standbys prepared."""

from collections.abc import Iterable

from torchloom_core.live.fleet.forecasts import Forecasts
from torchloom_core.live.kernel.actions.run import RESUMING, SUSPENDING, Run
from torchloom_core.wire.commands import RECONCILE
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Drain, Freeze, Join, Prepare, Resume, Thaw

SUSPENSION = "suspension"
"""The cause of commands to workers that are not as suspended or resumed as they should be."""


class Upkeep:
    """Sends commands that no action asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def reconcile(self, hellos: Iterable[Hello]) -> list[Output]:
        """Set the knobs of workers that do not have their desired values."""
        if self._run.switch.stopped:
            return []
        fleet = self._run.fleet
        unsettled = self._run.plans.unsettled()
        outputs: list[Output] = []
        for hello in hellos:
            worker, row = hello.worker, fleet.row_of[hello.worker]
            if fleet.is_over(row) or not self._run.launches.is_in_job(hello):
                continue
            on_the_way = self._run.commands.knobs_in_flight(worker)
            present = fleet.knobs[row]
            specs = fleet.specs_of(hello.role)
            for operation in self._run.desired.missing(hello, present, specs, unsettled):
                if operation.knob not in on_the_way:
                    outputs += self._run.issue(self._run.stage([row], operation), RECONCILE)
        return outputs

    def forget_long_gone(self, forecasts: Forecasts) -> list[Output]:
        """Drop what is known of workers whose rows were taken by others."""
        outputs: list[Output] = []
        for worker in self._run.fleet.take_forgotten():
            forecasts.forget(worker)
            self._run.held_standbys.forget(worker)
            outputs += self._run.desired.forget_worker(worker)
        return outputs

    def unset_values(self) -> dict[str, KnobValues]:
        """Return the run-fenced knobs to set again after a restart, by role."""
        run, hello = self._run, self._run.fleet.hello
        if not run.desired.table or run.switch.is_passive:
            return {}
        rows_of: dict[str, list[int]] = {}
        for row in run.voters():
            rows_of.setdefault(hello[row].role, []).append(row)
        busy = {plan.role for plan in run.plans.table.values() if plan.change}
        found: dict[str, KnobValues] = {}
        for role, rows in rows_of.items() if "" not in busy else ():
            incarnations = [(hello[row].worker, hello[row].incarnation) for row in rows]
            if role in busy or not all(run.launches.is_in_job(hello[row]) for row in rows):
                continue
            present = [run.fleet.knobs[row] for row in rows]
            specs = run.fleet.specs_of(role)
            if values := run.desired.nowhere(specs, incarnations, present, role):
                found[role] = values
        return found

    def suspended(self) -> list[Output]:
        """Stop workers that are to be frozen, and continue those that are to be resumed."""
        run = self._run
        busy = run.works_on(SUSPENDING) | run.works_on(RESUMING)
        on_the_way = run.commands.workers_with(Freeze, Thaw, Resume)
        outputs, lacking = run.suspensions.upkeep(busy, on_the_way, run.now_ns)
        for row, operation in lacking:
            outputs += run.issue(run.stage([row], operation), SUSPENSION)
        return outputs

    def prepare_standbys(self) -> list[Output]:
        """Hold standbys back from quorums, and prepare those that the lighthouse holds back."""
        run, outputs = self._run, self.hold_back_standbys()
        if self._run.switch.is_passive:
            return outputs
        ready = run.held_standbys.to_prepare(run.commands.workers_with(Join, Drain, Prepare))
        return outputs + run.issue(run.stage(ready, Prepare()), "standby")

    def hold_back_standbys(self) -> list[Output]:
        """Hold back all standbys but those that are to join."""
        return self._run.held_standbys.hold_back(self._run.commands.workers_with(Join))
