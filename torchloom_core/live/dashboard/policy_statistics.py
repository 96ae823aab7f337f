"""What came of each policy's proposals so far: counts, beside what a backtest expected."""

from dataclasses import dataclass

from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.decisions import Judged, Outcome, Verdict
from torchloom_core.wire.requests import PERSON

MOST_POLICIES = 100


@dataclass
class PolicyCounts:
    """Verdicts and outcomes of one policy's actions; ``net_gpu_s`` is expected of granted ones."""

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
    """Counts for up to `MOST_POLICIES` policies; requests of people are not counted."""

    def __init__(self) -> None:
        self.of: dict[str, PolicyCounts] = {}

    def decided(
        self, verdict: Verdict, earlier: bool | None = None, *, is_repeat: bool = False
    ) -> None:
        """Count a verdict.

        ``earlier``: whether the same proposal was granted before, None without a verdict so far.
        ``is_repeat``: it was denied as another proposal of the same action was.
        """
        counts = self._of(verdict.policy)
        if kind_of(verdict.action).skips_price_check:
            return
        if not verdict.granted:
            counts.denied += earlier is None and not is_repeat
            return
        if earlier:
            return
        counts.denied -= earlier is False
        counts.granted += 1
        counts.net_gpu_s += verdict.net_gpu_s

    def ended(self, outcome: Outcome) -> None:
        """Count an outcome."""
        if kind_of(outcome.action).skips_price_check:
            return
        counts = self._of(outcome.policy)
        counts.done += outcome.result == "done"
        counts.partial += outcome.result == "partial"
        counts.undone += outcome.result == "undone"

    def judged(self, policy: str, judgement: Judged) -> None:
        """Count a judgement of the guard."""
        counts = self._of(policy)
        counts.hurt += judgement.hurt is True
        counts.harmless += judgement.hurt is False
        counts.unjudged += judgement.hurt is None

    def _of(self, policy: str) -> PolicyCounts:
        known = self.of.get(policy)
        if known is None:
            known = PolicyCounts()
            if policy != PERSON and len(self.of) < MOST_POLICIES:
                self.of[policy] = known
        return known
