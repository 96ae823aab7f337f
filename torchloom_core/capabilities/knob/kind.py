"""Knob: set a run-time parameter, on one worker or on all that have it."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchloom_core.capabilities.knobs.kind import KnobsKind
from torchloom_core.floor.errors import KnobError
from torchloom_core.live.capability import (
    ActionKind,
    Output,
    Plan,
    Run,
    Stages,
    landed_text,
    listed,
    workers_text,
)
from torchloom_core.live.fleet.declared_knobs import left_out
from torchloom_core.live.kernel.actions.run import NAMED, of_role
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs
from torchloom_core.wire.commands import Command
from torchloom_core.wire.knobs import check_value, find_spec, shown, takes, unusual
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import SetKnob

KNOBS = KnobsKind()


class KnobKind(ActionKind[ChangeKnob]):
    """A granted value becomes the desired value, which workers that join later get as well.

    A run-fenced knob is set by :class:`~torchloom_core.capabilities.knobs.kind.KnobsKind`.
    """

    message = ChangeKnob
    operations = (SetKnob,)
    replaces = True
    rolls_back = True

    def target(self, action: ChangeKnob) -> str:
        """Return the knob, and the role if it is named."""
        return of_role(f"knob:{action.knob}", action.role or "")

    def obstacle(self, action: ChangeKnob, run: Run) -> str:
        """Refuse an unknown knob, and a value that it does not accept."""
        if action.worker is not None and (problem := run.not_present(action.worker)):
            return problem
        if not (action.worker or action.role) and (problem := run.ambiguous([action.knob])):
            return problem
        if (role := action.role) and role != _role(action, run):
            return f"{action.worker} has role {_role(action, run)}, was {role}"
        try:
            spec = _spec(action, run)
            check_value(spec, action.value)
        except KnobError as error:
            left_out = _left_out(action, run)
            return f"{error}; {left_out}" if left_out else str(error)
        if spec.fence == "run":
            if action.worker is not None:
                return f"knob {spec.name} is run-fenced: set it on all workers, not on one"
            return KNOBS.obstacle(_of_all(action), run)
        fenced = [
            hello.worker
            for row, hello in enumerate(run.fleet.hello)
            if run.stays(row)
            and hello.role == _role(action, run)
            and any(own.name == spec.name and own.fence == "run" for own in hello.knobs)
        ]
        if fenced:
            return f"knob {spec.name} is run-fenced on {listed(fenced, NAMED)} but not on all"
        if not _rows(action, run):
            return f"knob {action.knob}: {action.worker or 'every worker that has it'} is leaving"
        return ""

    def warning(self, action: ChangeKnob, run: Run) -> str:
        """Return how far the value is from those in use or desired, if that is unusual."""
        return unusual(
            _spec(action, run), action.value, run.in_use(action.knob, _role(action, run))
        )

    def stages(self, action: ChangeKnob, run: Run) -> Stages:
        """Return the one stage for all workers whose value is set."""
        if _spec(action, run).fence == "run":
            return KNOBS.stages(_of_all(action), run)
        operation = SetKnob(knob=action.knob, value=check_value(_spec(action, run), action.value))
        return Stages((run.stage(_rows(action, run), operation),))

    def granted(self, action: ChangeKnob, run: Run) -> list[Output]:
        """Store the desired value."""
        if _spec(action, run).fence == "run":
            return []  # stored once all ranks have applied it
        knob, worker, role = action.knob, action.worker, _role(action, run)
        return [run.desired.add(knob, action.value, worker, run.now_ns, role)]

    def superseded(self, action: ChangeKnob, run: Run) -> Iterable[Command]:
        """Return the commands in flight that set the same knob on the same workers."""
        workers = [run.fleet.hello[row].worker for row in _rows(action, run)]
        return run.commands.setting(workers, action.knob)

    def undone(self, action: ChangeKnob, began_ns: int, run: Run) -> list[Output]:
        """Drop the desired value."""
        knob, worker, role = action.knob, action.worker, _role(action, run)
        return [*run.desired.withdraw(knob, action.value, worker, began_ns, role)]

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Remember the present value of a run-fenced knob."""
        return KNOBS.begin(plan, run) if plan.change else []

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Store the value that all ranks applied, and start its guard."""
        return KNOBS.end(plan, trouble, run) if plan.change else []

    def summary(self, action: ChangeKnob, plan: Plan, run: Run) -> str:
        """Return the value, how many workers have it, which do not, and the guard."""
        done = f"{action.knob} = {shown(action.value)} on {workers_text(plan)}{landed_text(plan)}"
        watched = run.guards.text(plan.verdict)
        return ", ".join(filter(None, [done, _left_out(action, run)])) + watched

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``knob lr = 0.1 on g0-0``."""
        whom = action.get("worker") or action.get("role") or "all"
        return f"knob {action['knob']} = {action['value']} on {whom}"


def _of_all(action: ChangeKnob) -> ChangeKnobs:
    return ChangeKnobs(values={action.knob: action.value}, role=action.role or "")


def _role(action: ChangeKnob, run: Run) -> str:
    """Return the role whose knob it is: the worker's, the named one, or the one that has it."""
    if action.worker in run.fleet.row_of:
        return run.fleet.hello[run.fleet.row_of[action.worker]].role
    return action.role or run.role_of_knobs([action.knob])


def _spec(action: ChangeKnob, run: Run) -> KnobSpec:
    if action.worker is None:
        return run.spec(action.knob, _role(action, run))
    return find_spec(action.knob, run.fleet.hello[run.fleet.row_of[action.worker]].knobs)


def _rows(action: ChangeKnob, run: Run) -> list[int]:
    """Return the rows to change: of one worker, or of all whose knob has the same spec."""
    way, role = takes(_spec(action, run)), _role(action, run)
    return [
        row
        for row, hello in enumerate(run.fleet.hello)
        if run.stays(row)
        and hello.role == role
        and action.worker in (None, hello.worker)
        and any(spec.name == action.knob and takes(spec) == way for spec in hello.knobs)
    ]


def _left_out(action: ChangeKnob, run: Run) -> str:
    role = _role(action, run)
    spec = run.fleet.specs_of(role).get(action.knob) if action.worker is None else None
    rows = [row for row in run.with_role(range(len(run.fleet.hello)), role) if run.stays(row)]
    return left_out(spec, [run.fleet.hello[row] for row in rows])


KIND = KnobKind()
