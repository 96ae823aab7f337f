"""Regroup in the Weaver: it asks the rendezvous, and waits for its answer."""

from collections.abc import Mapping
from typing import Any, cast

from torchloom_core.capabilities.regroup import RegroupWorkers
from torchloom_core.floor.suggest import listed, nearest
from torchloom_core.interface.programs import SplitProgram
from torchloom_core.live.capability import ActionKind, Output, Plan, Run
from torchloom_core.wire.planned_changes import Change
from torchloom_core.wire.programs import ChangeWanted


class RegroupKind(ActionKind[RegroupWorkers]):
    """Done once the rendezvous has begun the next generation."""

    message = RegroupWorkers
    high_impact = True
    is_answered = True

    def target(self, action: RegroupWorkers) -> str:
        """Return the program."""
        return f"program:{action.role}" if action.role else "program"

    def obstacle(self, action: RegroupWorkers, run: Run) -> str:
        """Refuse where no rendezvous runs a generation, and unknown workers."""
        programs = run.fleet.programs.of
        program = _program(action, run)
        if program is None:
            if len(programs) > 1 and not action.role:
                return f"the roles {listed(sorted(programs))} are split over workers: name one"
            need = "set rendezvous.address, or roles.NAME.rendezvous, in the config"
            return f"no rendezvous of role {action.role or 'trainer'} is known: {need}"
        present = program.outlook.assignment
        if not program.is_reachable or present is None or program.outlook.phase != "running":
            phase = program.outlook.phase if program.is_reachable else "unreachable"
            return f"no generation runs: the rendezvous of {program.role} is {phase}"
        if action.generation not in (0, present.generation):
            return f"generation {action.generation} is over: {present.generation} runs"
        known = {*present.workers, *program.outlook.standbys}
        unknown = [name for name in action.without if name not in known]
        return f"no worker is called {unknown[0]!r}{nearest(unknown[0], known)}" if unknown else ""

    def price_gpu_s(self, action: RegroupWorkers, run: Run) -> float:
        """Return what the stall costs that the rendezvous estimates."""
        program = _program(action, run)
        if program is None or program.offer is None:
            return 0.0
        return program.offer.stall_s * len(program.workers) * run.fleet.costs.gpus_per_worker

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Ask the rendezvous, for the present generation alone."""
        action = cast(RegroupWorkers, plan.action)
        program = _program(action, run)
        if program is None or program.outlook.assignment is None:
            return []
        change = Change(
            id=plan.verdict,
            generation=action.generation or program.outlook.assignment.generation,
            without=action.without,
        )
        return [ChangeWanted(role=program.role, change=change)]

    def is_done(self, plan: Plan, run: Run) -> bool:
        """Return whether the rendezvous has begun the generation."""
        program = _program(cast(RegroupWorkers, plan.action), run)
        answered = program.outlook.answered if program else None
        return answered is not None and (answered.id, answered.state) == (plan.verdict, "done")

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return why the rendezvous has refused it, or that it does not answer."""
        program = _program(cast(RegroupWorkers, plan.action), run)
        if program is not None:
            answered = program.outlook.answered
            if answered.id == plan.verdict and answered.state == "refused":
                return f"refused by the rendezvous: {answered.why}"
        late = run.commands.report_time.is_past(plan.deadline_ns, run.now_ns)
        return "the rendezvous has not answered in time" if late else ""

    def summary(self, action: RegroupWorkers, plan: Plan, run: Run) -> str:
        """Return the generation that has begun."""
        program = _program(action, run)
        present = program.outlook.assignment if program else None
        return f"generation {present.generation}: {present.why}" if present else ""

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return what is changed."""
        without = listed(list(action.get("without", ())))
        role = f" of {action['role']}" if action.get("role") else ""
        return f"regroup workers{role}" + (f" without {without}" if without else "")


def _program(action: RegroupWorkers, run: Run) -> SplitProgram | None:
    programs = run.fleet.programs.of
    if action.role or len(programs) != 1:
        return programs.get(action.role)
    return next(iter(programs.values()))


KIND = RegroupKind()
