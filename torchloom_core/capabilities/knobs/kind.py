"""Knobs: set run-fenced parameters on all ranks at one step, or on none."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.floor.errors import KnobError
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
from torchloom_core.live.kernel.actions.run import of_role
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
        """Return the knobs, and the role if it is named."""
        return of_role(f"knobs:{','.join(sorted(action.values))}", action.role)

    def obstacle(self, action: ChangeKnobs, run: Run) -> str:
        """Refuse a knob that not all ranks of a role have, and a value that it does not accept."""
        if not action.role and (problem := run.ambiguous(action.values)):
            return problem
        role = _role(action, run)
        try:
            checked(action.values, run, role)
        except KnobError as error:
            return str(error)
        what = f"knob {', '.join(action.values)}"
        return cannot_agree(what, run, {role}) or run.guards.obstacle(action.guard, role)

    def warning(self, action: ChangeKnobs, run: Run) -> str:
        """Return how far a value is from those in use or desired, if that is unusual."""
        role = _role(action, run)
        warnings = (
            unusual(run.spec(knob, role), value, run.in_use(knob, role))
            for knob, value in action.values.items()
        )
        return next(filter(None, warnings), "")

    def stages(self, action: ChangeKnobs, run: Run) -> Stages:
        """Return the one stage for all ranks that can agree."""
        role = _role(action, run)
        return fenced_stages(SetKnobs(values=checked(action.values, run, role)), run, role=role)

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Remember the present values for a rollback, unless the change restores values."""
        if plan.policy not in (GUARD, RECONCILE):
            values, role = new_values(plan.action), _made_by(plan, run)
            before = [run.fleet.knobs[row] for row in run.voters({role})]
            run.guards.expect(plan, first_values(values, before), run.now_ns, role)
        return []

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Store the values that all ranks applied, and start their guard."""
        if trouble:
            run.guards.forget(plan.verdict)
            return []
        values, role = new_values(plan.action), _made_by(plan, run)
        if plan.policy == RECONCILE:
            return _report_restored(values, role, run)
        if plan.policy == GUARD:
            run.guards.taken_back(values, role)
        run.guards.begin(plan.verdict, run.now_ns)
        return [run.desired.add(k, v, None, run.now_ns, role) for k, v in values.items()]

    def summary(self, action: ChangeKnobs, plan: Plan, run: Run) -> str:
        """Return the values, on how many workers, at which step, and the guard."""
        values = ", ".join(f"{knob} = {shown(value)}" for knob, value in action.values.items())
        return f"{values} on {workers_text(plan)}{landed_text(plan)}{run.guards.text(plan.verdict)}"

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``knobs lr = 0.1, compression = bf16``."""
        values = ", ".join(f"{knob} = {v}" for knob, v in action["values"].items())
        return f"knobs {values}{f' on {role}' if (role := action.get('role')) else ''}"


def _role(action: ChangeKnobs, run: Run) -> str:
    return action.role or run.role_of_knobs(action.values)


def _made_by(plan: Plan, run: Run) -> str:
    """Return the role whose ranks make a plan's change; an older Weaver did not store it."""
    return plan.role or run.role_of_knobs(new_values(plan.action))


def checked(values: KnobValues, run: Run, role: str) -> KnobValues:
    """Return the values in their knobs' own types.

    Raises
    ------
    KnobError
        If a knob is not run-fenced with one spec on all ranks of the role, or does not accept its
        value.
    """
    own = {knob: check_value(run.spec(knob, role), value) for knob, value in values.items()}
    for knob in own:
        spec = run.spec(knob, role)
        if spec.fence != "run":
            raise KnobError(f"knob {knob} is worker-fenced: set it without other knobs or a guard")
        check_all_have(spec, [run.fleet.hello[row] for row in run.voters({role})])
    return own


def _report_restored(values: KnobValues, role: str, run: Run) -> list[Output]:
    """Report, also in one worker's log, that all ranks have the values from before a restart."""
    desired = [one for knob in values if (one := run.desired.of(None, knob, role)) is not None]
    voters = run.voters({role})[:1] if desired else []
    if not voters:
        return []
    notice = notices.of_restored(desired, run.fleet.hello[voters[0]].worker)
    return run.notify(notice, RECONCILE)


KIND = KnobsKind()
