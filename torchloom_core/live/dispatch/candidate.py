"""A proposal that competes before the arbiter, and the verdict on it."""

from dataclasses import dataclass
from typing import Literal

from torchloom_core.wire.decisions import Proposed, Verdict

Mode = Literal["act", "dry_run", "shadow"]


@dataclass(frozen=True)
class Candidate:
    """A proposal, its policy's mode and the time it was made.

    ``price`` is what a GPU-second of the role that it concerns is worth.
    """

    proposed: Proposed
    mode: Mode
    ts_ns: int
    price: float = 1.0

    @property
    def net_gpu_s(self) -> float:
        """The expected net gain, useful GPU-seconds at the role's price."""
        return self.price * self.proposed.proposal.net_gpu_s

    def denied(self, rule: str, reason: str, propensity: float = 1.0) -> Verdict:
        """Return a verdict that denies it."""
        return self._verdict(rule, reason, propensity, granted=False)

    def granted(self, rule: str, reason: str, propensity: float) -> Verdict:
        """Return a verdict that grants it."""
        return self._verdict(rule, reason, propensity, granted=True)

    def _verdict(self, rule: str, reason: str, propensity: float, *, granted: bool) -> Verdict:
        return Verdict(
            proposal=self.proposed.id,
            policy=self.proposed.policy,
            action=self.proposed.proposal.action,
            granted=granted,
            rule=rule,
            reason=reason,
            net_gpu_s=self.net_gpu_s,
            propensity=propensity,
        )
