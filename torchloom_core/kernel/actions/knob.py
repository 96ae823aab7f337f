"""Knob: a run-time parameter gets another value, on one worker or on all that have it."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchloom_core.errors import KnobError
from torchloom_core.fleet.declared_knobs import left_out
from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.knobs import KnobsKind
from torchloom_core.kernel.actions.run import NAMED, Run
from torchloom_core.suggest import listed
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs
from torchloom_core.wire.events import Output
from torchloom_core.wire.knobs import check_value, find_spec, shown, takes, unusual
from torchloom_core.wire.messages import Command, KnobSpec, SetKnob
from torchloom_core.wire.plans import Plan, landed_text, workers_text

KNOBS = KnobsKind()


class KnobKind(ActionKind[ChangeKnob]):
    """What was granted stays wanted: who comes later is told it, too.

    A run-fenced one lands as :class:`~torchloom_core.kernel.actions.knobs.KnobsKind` has it.
    """

    message = ChangeKnob
    operations = (SetKnob,)
    replaces = True
    is_set_back = True

    def target(self, action: ChangeKnob) -> str:
        """Return the knob."""
        return f"knob:{action.knob}"

    def obstacle(self, action: ChangeKnob, run: Run) -> str:
        """Refuse a knob that nobody has, and a value that it does not take."""
        if action.worker is not None and (problem := run.not_present(action.worker)):
            return problem
        try:
            spec = _spec(action, run)
            check_value(spec, action.value)
        except KnobError as error:
            left_out = _left_out(action, run)
            return f"{error}; {left_out}" if left_out else str(error)
        if spec.fence == "run":
            if action.worker is not None:
                return f"knob {spec.name} lands on all ranks at one step: none can be set alone"
            return KNOBS.obstacle(_of_all(action), run)
        fenced = [
            hello.worker
            for row, hello in enumerate(run.fleet.hello)
            if run.stays(row)
            and any(own.name == spec.name and own.fence == "run" for own in hello.knobs)
        ]
        if fenced:
            who = listed(fenced, NAMED)
            return f"knob {spec.name} lands on all ranks at one step on {who}, elsewhere not"
        if not _rows(action, run):
            return f"knob {action.knob}: {action.worker or 'every worker that has it'} is leaving"
        return ""

    def warning(self, action: ChangeKnob, run: Run) -> str:
        """Return by how much the value is off from all that are in use or wanted."""
        return unusual(_spec(action, run), action.value, run.in_use(action.knob))

    def stages(self, action: ChangeKnob, run: Run) -> Stages:
        """Return the one stage of all that are told the value."""
        if _spec(action, run).fence == "run":
            return KNOBS.stages(_of_all(action), run)
        operation = SetKnob(knob=action.knob, value=check_value(_spec(action, run), action.value))
        return Stages((run.stage(_rows(action, run), operation),))

    def granted(self, action: ChangeKnob, run: Run) -> list[Output]:
        """Want the value from now on."""
        if _spec(action, run).fence == "run":
            return []  # not before it has landed
        return [run.desired.add(action.knob, action.value, action.worker, run.now_ns)]

    def superseded(self, action: ChangeKnob, run: Run) -> Iterable[Command]:
        """Return what the same workers are being told of the same knob."""
        workers = [run.fleet.hello[row].worker for row in _rows(action, run)]
        return run.commands.setting(workers, action.knob)

    def undone(self, action: ChangeKnob, began_ns: int, run: Run) -> list[Output]:
        """Want the value no more."""
        return [*run.desired.withdraw(action.knob, action.value, action.worker, began_ns)]

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Remember what a run-fenced one is."""
        return KNOBS.begin(plan, run) if plan.change else []

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Want what all ranks did together from now on, and watch over it."""
        return KNOBS.end(plan, trouble, run) if plan.change else []

    def summary(self, action: ChangeKnob, plan: Plan, run: Run) -> str:
        """Return the value, how many have it, who was left out, and what is watched."""
        done = f"{action.knob} = {shown(action.value)} on {workers_text(plan)}{landed_text(plan)}"
        watched = run.guards.text(plan.verdict)
        return ", ".join(filter(None, [done, _left_out(action, run)])) + watched

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``knob lr = 0.1 on g0-0``."""
        return f"knob {action['knob']} = {action['value']} on {action.get('worker') or 'all'}"


def _of_all(action: ChangeKnob) -> ChangeKnobs:
    return ChangeKnobs(values={action.knob: action.value})


def _spec(action: ChangeKnob, run: Run) -> KnobSpec:
    if action.worker is None:
        return run.spec(action.knob)
    return find_spec(action.knob, run.fleet.hello[run.fleet.row_of[action.worker]].knobs)


def _rows(action: ChangeKnob, run: Run) -> list[int]:
    """Return the rows whose knob is changed: of one worker, or of all that agree on it."""
    way = takes(_spec(action, run))
    return [
        row
        for row, hello in enumerate(run.fleet.hello)
        if run.stays(row)
        and action.worker in (None, hello.worker)
        and any(spec.name == action.knob and takes(spec) == way for spec in hello.knobs)
    ]


def _left_out(action: ChangeKnob, run: Run) -> str:
    spec = run.fleet.knob_specs.get(action.knob) if action.worker is None else None
    return left_out(spec, [h for row, h in enumerate(run.fleet.hello) if run.stays(row)])
