"""The plans under way: what each works on, and which of its commands are open."""

from collections.abc import Iterable

from torchloom_core.kept import KeptTable
from torchloom_core.wire.plans import Plan


class UnderWay:
    """The plans under way, and what they keep busy.

    Attributes
    ----------
    table : KeptTable of Plan
        By the verdict that granted them.
    waiting : dict of str to None
        Verdicts of the plans that wait for a stand-by to train or for their turn, in order.
    """

    def __init__(self) -> None:
        self.table: KeptTable[Plan] = KeptTable("plan")
        self.waiting: dict[str, None] = {}
        self._works_on: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._lives: dict[str, frozenset[tuple[str, int]]] = {}

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
        self._lives[verdict] = frozenset(lives)

    def lives_of(self, verdict: str) -> frozenset[tuple[str, int]]:
        """Return worker and incarnation of all that the plan's present stage was told to."""
        return self._lives.get(verdict, frozenset())

    def change_before(self, plan: Plan) -> bool:
        """Say whether another change of all ranks was granted before this one, and is not over."""
        return any(0 < other.change < plan.change for other in self.table.values())

    def leave(self, plan: Plan, target: str) -> set[str]:
        """Drop a plan; return the ids of its commands that are still open."""
        del self.table[plan.verdict]
        if self._works_on.get(target) == plan.verdict:
            del self._works_on[target]
        self.waiting.pop(plan.verdict, None)
        self._lives.pop(plan.verdict, None)
        return self._open.pop(plan.verdict)
