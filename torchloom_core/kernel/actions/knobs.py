"""Knobs: run-fenced parameters get other values, all of them at one step, or none does."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.errors import KnobError
from torchloom_core.fleet.declared_knobs import check_all_have, first_values
from torchloom_core.kernel.actions.fenced import cannot_agree, fenced_stages
from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire import notices
from torchloom_core.wire.actions import ChangeKnobs, new_values
from torchloom_core.wire.events import Output
from torchloom_core.wire.knobs import check_value, shown, unusual
from torchloom_core.wire.messages import RECONCILE, FencedChange, KnobValues, SetKnobs
from torchloom_core.wire.plans import Plan, landed_text, workers_text
from torchloom_core.wire.requests import GUARD


class KnobsKind(ActionKind[ChangeKnobs]):
    """What was granted stays wanted: a run that starts again is told it, too.

    One that is granted while another is under way waits for it.
    """

    message = ChangeKnobs
    operations = (FencedChange,)
    high_impact = True
    replaces = True
    is_set_back = True

    def target(self, action: ChangeKnobs) -> str:
        """Return the knobs."""
        return f"knobs:{','.join(sorted(action.values))}"

    def obstacle(self, action: ChangeKnobs, run: Run) -> str:
        """Refuse a knob that nobody has or not all have, and a value that it does not take."""
        try:
            checked(action.values, run)
        except KnobError as error:
            return str(error)
        return cannot_agree(f"knob {', '.join(action.values)}", run) or run.guards.obstacle(
            action.guard
        )

    def warning(self, action: ChangeKnobs, run: Run) -> str:
        """Return by how much a value is off from all that are in use or wanted."""
        doubts = (
            unusual(run.spec(knob), value, run.in_use(knob))
            for knob, value in action.values.items()
        )
        return next(filter(None, doubts), "")

    def stages(self, action: ChangeKnobs, run: Run) -> Stages:
        """Return the one stage of all that agree."""
        return fenced_stages(SetKnobs(values=checked(action.values, run)), run)

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Remember what the knobs are, before any rank changes them, unless it only puts back."""
        if plan.policy not in (GUARD, RECONCILE):
            before = [run.fleet.knobs[row] for row in run.voters()]
            run.guards.expect(plan, first_values(new_values(plan.action), before), run.now_ns)
        return []

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Want the values that have landed from now on, and watch over them."""
        if trouble:
            run.guards.forget(plan.verdict)
            return []
        values = new_values(plan.action)
        if plan.policy == RECONCILE:
            return _tell_restored(values, run)
        if plan.policy == GUARD:
            run.guards.taken_back(values)
        run.guards.begin(plan.verdict, run.now_ns)
        return [run.desired.add(k, v, None, run.now_ns) for k, v in values.items()]

    def summary(self, action: ChangeKnobs, plan: Plan, run: Run) -> str:
        """Return the values, on how many, at which step, and what watches over them."""
        values = ", ".join(f"{knob} = {shown(value)}" for knob, value in action.values.items())
        return f"{values} on {workers_text(plan)}{landed_text(plan)}{run.guards.text(plan.verdict)}"

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``knobs lr = 0.1, compression = bf16``."""
        return "knobs " + ", ".join(f"{knob} = {v}" for knob, v in action["values"].items())


def checked(values: KnobValues, run: Run) -> KnobValues:
    """Return the values in their knobs' own types.

    Raises
    ------
    KnobError
        If one is of no knob that all ranks take alike and change together, or not one it takes.
    """
    own = {knob: check_value(run.spec(knob), value) for knob, value in values.items()}
    for knob in own:
        spec = run.spec(knob)
        if spec.fence != "run":
            raise KnobError(
                f"knob {knob} is worker-fenced: each worker sets it alone, so it is set alone"
            )
        check_all_have(spec, [run.fleet.hello[row] for row in run.voters()])
    return own


def _tell_restored(values: KnobValues, run: Run) -> list[Output]:
    """Tell, also in the log of one trainer, that all ranks have what was set before a restart."""
    wishes = [wish for knob in values if (wish := run.desired.of(None, knob)) is not None]
    voters = run.voters() if wishes else []
    workers = [run.fleet.hello[row].worker for row in voters[:1]]
    told = [run.notify(notices.of_restored(wishes, worker), RECONCILE) for worker in workers]
    return [output for outputs in told for output in outputs]
