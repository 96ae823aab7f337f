"""The plans under way: what each works on, and what has become of its commands."""

from collections.abc import Iterable
from typing import Any

import msgspec

from torchloom_core.persistent_table import PersistentTable
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.messages import Command, Join
from torchloom_core.wire.plans import Plan

_NAMED = 20
"""How many commands that were not applied an outcome names."""

_WHY_CHARACTERS = 300

_FATES: dict[str, Any] = {"rejected": "refused", "failed": "failed"}
"""What the answer of one rank makes of a change that all are offered."""


class UnderWay:
    """The plans under way, and what they keep busy.

    Attributes
    ----------
    table : PersistentTable of Plan
        By the verdict that granted them.
    waiting : dict of str to None
        Verdicts of the plans that wait for a standby to train or for their turn, in order.
    """

    def __init__(self) -> None:
        self.table: PersistentTable[Plan] = PersistentTable("plan")
        self.waiting: dict[str, None] = {}
        self._works_on: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._incarnations: dict[str, frozenset[tuple[str, int]]] = {}

    def on(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or nothing."""
        return self._works_on.get(target, "")

    def open_of(self, verdict: str) -> set[str]:
        """Return the ids of the plan's commands that have not ended."""
        return self._open.get(verdict, set())

    def enter(self, plan: Plan, target: str) -> None:
        """Take in a plan that works on the target."""
        self.table[plan.verdict] = plan
        self._open[plan.verdict] = set()
        self._works_on[target] = plan.verdict
        if plan.await_training or plan.change:
            self.waiting[plan.verdict] = None

    def opened(
        self, verdict: str, command_ids: Iterable[str], lives: Iterable[tuple[str, int]]
    ) -> None:
        """Take note of the commands that have not ended yet, and of who was told."""
        self._open[verdict] = set(command_ids)
        self._incarnations[verdict] = frozenset(lives)

    def settled(self, command: Command, status: str, detail: str, step: int) -> None:
        """Take note that a command has ended, and for the outcome why."""
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
        """Take note of the step at which a rank did what all do together."""
        if plan.change:
            steps = (*plan.landed, step)
            landed = min(steps), max(steps)
            if landed != plan.landed:
                self.table[plan.verdict] = msgspec.structs.replace(plan, landed=landed)

    def reserved(self) -> set[str]:
        """Return the standby workers that some plan has taken already."""
        plans = self.table.values()
        joins = (s for plan in plans for s in plan.stages if isinstance(s.operation, Join))
        called = {worker for stage in joins for worker, _ in stage.incarnations}
        return called.union(*(plan.await_training for plan in plans))

    def unsettled(self) -> set[tuple[str, str | None]]:
        """Return knob and worker of the changes that were called off and may yet be undone."""
        actions = [plan.action for plan in self.table.values() if plan.called_off]
        return {(a.knob, a.worker) for a in actions if isinstance(a, ChangeKnob)}

    def is_due(self, now_ns: int) -> bool:
        """Say whether the time of any plan is over."""
        return any(now_ns > plan.deadline_ns for plan in self.table.values())

    def incarnations_of(self, verdict: str) -> frozenset[tuple[str, int]]:
        """Return worker and incarnation of all that the plan's present stage was told to."""
        return self._incarnations.get(verdict, frozenset())

    def change_before(self, plan: Plan) -> bool:
        """Say whether another change of all ranks was granted before this one, and is not over."""
        return any(0 < other.change < plan.change for other in self.table.values())

    def leave(self, plan: Plan, target: str) -> set[str]:
        """Drop a plan; return the ids of its commands that are still open."""
        del self.table[plan.verdict]
        if self._works_on.get(target) == plan.verdict:
            del self._works_on[target]
        self.waiting.pop(plan.verdict, None)
        self._incarnations.pop(plan.verdict, None)
        return self._open.pop(plan.verdict)
