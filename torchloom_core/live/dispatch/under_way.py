"""The plans under way: their targets and the results of their commands."""

from collections.abc import Iterable
from typing import Any

import msgspec

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.commands import Command
from torchloom_core.wire.operations import Join
from torchloom_core.wire.plans import Plan

_NAMED = 20
"""How many commands that were not applied an outcome names at most."""

_WHY_CHARACTERS = 300

_FATES: dict[str, Any] = {"rejected": "refused", "failed": "failed"}
"""The state of an offered change after one rank's final ack."""


class UnderWay:
    """The plans under way, by their verdicts; ``waiting``: those that wait for their turn."""

    def __init__(self) -> None:
        self.table: PersistentTable[Plan] = PersistentTable("plan")
        self.waiting: dict[str, None] = {}
        self._works_on: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._incarnations: dict[str, frozenset[tuple[str, int]]] = {}

    def on(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or an empty string."""
        return self._works_on.get(target, "")

    def open_of(self, verdict: str) -> set[str]:
        """Return the ids of the plan's commands that have not ended."""
        return self._open.get(verdict, set())

    def enter(self, plan: Plan, target: str) -> None:
        """Add a plan that works on the target."""
        self.table[plan.verdict] = plan
        self._open[plan.verdict] = set()
        self._works_on[target] = plan.verdict
        if plan.await_training or plan.change:
            self.waiting[plan.verdict] = None

    def opened(
        self, verdict: str, command_ids: Iterable[str], incarnations: Iterable[tuple[str, int]]
    ) -> None:
        """Store the plan's open commands, and the incarnations they were sent to."""
        self._open[verdict] = set(command_ids)
        self._incarnations[verdict] = frozenset(incarnations)

    def settled(self, command: Command, status: str, detail: str, step: int) -> None:
        """Record that a command has ended, and why, for the outcome."""
        pending = self.open_of(command.cause)
        if command.id not in pending:
            return
        pending.remove(command.id)
        plan = self.table[command.cause]
        if status == "applied":
            self._land(plan, step)
            return
        missed = plan.missed
        if len(missed) < _NAMED:
            why = f"{status}: {detail}" if detail else status
            missed = {**missed, command.id: why[:_WHY_CHARACTERS]}
        self.table[plan.verdict] = msgspec.structs.replace(
            plan,
            missed=missed,
            missed_count=plan.missed_count + 1,
            refused_count=plan.refused_count + (status == "rejected"),
            fate=_FATES.get(status, plan.fate) if plan.fate == "offered" else plan.fate,
        )

    def _land(self, plan: Plan, step: int) -> None:
        """Record the step at which a rank applied a fenced change."""
        if plan.change:
            steps = (*plan.landed, step)
            landed = min(steps), max(steps)
            if landed != plan.landed:
                self.table[plan.verdict] = msgspec.structs.replace(plan, landed=landed)

    def reserved(self) -> set[str]:
        """Return the standby workers that a plan has reserved."""
        plans = self.table.values()
        joins = (s for plan in plans for s in plan.stages if isinstance(s.operation, Join))
        joining = {worker for stage in joins for worker, _ in stage.incarnations}
        return joining.union(*(plan.await_training for plan in plans))

    def unsettled(self) -> set[tuple[str, str | None]]:
        """Return knob and worker of called-off changes that may still be undone."""
        actions = [plan.action for plan in self.table.values() if plan.called_off]
        return {(a.knob, a.worker) for a in actions if isinstance(a, ChangeKnob)}

    def is_due(self, now_ns: int) -> bool:
        """Return whether any plan is past its deadline."""
        return any(now_ns > plan.deadline_ns for plan in self.table.values())

    def incarnations_of(self, verdict: str) -> frozenset[tuple[str, int]]:
        """Return the pairs of worker and incarnation that the plan's present stage was sent to."""
        return self._incarnations.get(verdict, frozenset())

    def change_before(self, plan: Plan) -> bool:
        """Return whether an earlier fenced change of the same ranks is still under way."""
        earlier = (other for other in self.table.values() if 0 < other.change < plan.change)
        return any(other.role == plan.role or not (other.role and plan.role) for other in earlier)

    def leave(self, plan: Plan, target: str) -> set[str]:
        """Remove a plan; return the ids of its open commands."""
        del self.table[plan.verdict]
        if self._works_on.get(target) == plan.verdict:
            del self._works_on[target]
        self.waiting.pop(plan.verdict, None)
        self._incarnations.pop(plan.verdict, None)
        return self._open.pop(plan.verdict)
