"""Knobs: set run-fenced parameters on all ranks at one step, or on none."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.floor.errors import KnobError
from torchloom_core.floor.suggest import listed
from torchloom_core.live.capability import (
    ActionKind,
    Output,
    Plan,
    Run,
    Stages,
    cannot_agree,
    fenced_stages,
    landed_text,
    workers_text,
)
from torchloom_core.live.fleet.declared_knobs import check_all_have, first_values
from torchloom_core.wire import notices
from torchloom_core.wire.actions import ChangeKnobs, new_values
from torchloom_core.wire.commands import RECONCILE
from torchloom_core.wire.knobs import check_value, shown, unusual
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.operations import FencedChange, SetKnobs
from torchloom_core.wire.requests import GUARD


class KnobsKind(ActionKind[ChangeKnobs]):
    """Granted values become the desired values, which a restarted run gets as well.

    A change waits for an earlier one that is under way.
    """

    message = ChangeKnobs
    operations = (FencedChange,)
    high_impact = True
    replaces = True
    rolls_back = True

    def target(self, action: ChangeKnobs) -> str:
        """Return the knobs."""
        return f"knobs:{','.join(sorted(action.values))}"

    def obstacle(self, action: ChangeKnobs, run: Run) -> str:
        """Refuse a knob that not all ranks of a role have, and a value that it does not accept."""
        try:
            checked(action.values, run)
        except KnobError as error:
            return str(error)
        what, roles = f"knob {', '.join(action.values)}", run.roles_with(action.values)
        if len(roles) > 1:
            return f"{what}: the roles {listed(sorted(roles))} have it, and do not vote together"
        return cannot_agree(what, run, roles) or run.guards.obstacle(action.guard)

    def warning(self, action: ChangeKnobs, run: Run) -> str:
        """Return how far a value is from those in use or desired, if that is unusual."""
        warnings = (
            unusual(run.spec(knob), value, run.in_use(knob))
            for knob, value in action.values.items()
        )
        return next(filter(None, warnings), "")

    def stages(self, action: ChangeKnobs, run: Run) -> Stages:
        """Return the one stage for all ranks that can agree."""
        return fenced_stages(SetKnobs(values=checked(action.values, run)), run)

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Remember the present values for a rollback, unless the change restores values."""
        if plan.policy not in (GUARD, RECONCILE):
            values = new_values(plan.action)
            before = [run.fleet.knobs[row] for row in run.voters(run.roles_with(values))]
            run.guards.expect(plan, first_values(values, before), run.now_ns)
        return []

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Store the values that all ranks applied, and start their guard."""
        if trouble:
            run.guards.forget(plan.verdict)
            return []
        values = new_values(plan.action)
        if plan.policy == RECONCILE:
            return _report_restored(values, run)
        if plan.policy == GUARD:
            run.guards.taken_back(values)
        run.guards.begin(plan.verdict, run.now_ns)
        return [run.desired.add(k, v, None, run.now_ns) for k, v in values.items()]

    def summary(self, action: ChangeKnobs, plan: Plan, run: Run) -> str:
        """Return the values, on how many workers, at which step, and the guard."""
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
        If a knob is not run-fenced with one spec on all ranks, or does not accept its value.
    """
    own = {knob: check_value(run.spec(knob), value) for knob, value in values.items()}
    for knob in own:
        spec = run.spec(knob)
        if spec.fence != "run":
            raise KnobError(f"knob {knob} is worker-fenced: set it without other knobs or a guard")
        voters = run.voters(run.roles_with(values))
        check_all_have(spec, [run.fleet.hello[row] for row in voters])
    return own


def _report_restored(values: KnobValues, run: Run) -> list[Output]:
    """Report, also in one trainer's log, that all ranks have the values from before a restart."""
    desired = [one for knob in values if (one := run.desired.of(None, knob)) is not None]
    voters = run.voters()[:1] if desired else []
    if not voters:
        return []
    notice = notices.of_restored(desired, run.fleet.hello[voters[0]].worker)
    return run.notify(notice, RECONCILE)


KIND = KnobsKind()
