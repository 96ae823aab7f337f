"""What came of each policy's proposals so far: counts beside what a backtest promised."""

from dataclasses import dataclass

from torchloom_core.kernel.actions.kinds import kind_of
from torchloom_core.wire.events import Judged, Outcome, Verdict
from torchloom_core.wire.requests import PERSON

MOST_POLICIES = 100


@dataclass
class PolicyCounts:
    """Of one policy: granted actions that change something, and what became of them.

    ``net_gpu_s`` is what the granted ones promised, useful GPU-seconds.
    """

    granted: int = 0
    denied: int = 0
    net_gpu_s: float = 0.0
    done: int = 0
    partial: int = 0
    undone: int = 0
    harmless: int = 0
    hurt: int = 0
    unjudged: int = 0


class PolicyStatistics:
    """One a policy; of more than `MOST_POLICIES` none is kept. What people ask for is none's."""

    def __init__(self) -> None:
        self.of: dict[str, PolicyCounts] = {}

    def decided(self, verdict: Verdict) -> None:
        """Count a verdict."""
        tally = self._of(verdict.policy)
        if kind_of(verdict.action).skips_price_check:
            return
        if not verdict.granted:
            tally.denied += 1
            return
        tally.granted += 1
        tally.net_gpu_s += verdict.net_gpu_s

    def ended(self, outcome: Outcome) -> None:
        """Count what a granted action came to."""
        if kind_of(outcome.action).skips_price_check:
            return
        tally = self._of(outcome.policy)
        match outcome.result:
            case "done":
                tally.done += 1
            case "partial":
                tally.partial += 1
            case "undone":
                tally.undone += 1

    def judged(self, policy: str, judgement: Judged) -> None:
        """Count what the guard said of a change."""
        tally = self._of(policy)
        match judgement.hurt:
            case True:
                tally.hurt += 1
            case False:
                tally.harmless += 1
            case None:
                tally.unjudged += 1

    def _of(self, policy: str) -> PolicyCounts:
        known = self.of.get(policy)
        if known is None:
            known = PolicyCounts()
            if policy != PERSON and len(self.of) < MOST_POLICIES:
                self.of[policy] = known
        return known
