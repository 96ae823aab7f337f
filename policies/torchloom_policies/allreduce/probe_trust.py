"""Whether probes are to be believed: they may go over another network than the allreduce."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_TIMES = 3.0
"""So many times as fast as it was thought to be, a link is believed only for now."""
_STEPS = 20
"""What the allreduce shows later may be another bandwidth."""
_LEAST_SHARE = 0.1
_LEAST_BYTES = 512 * 1024
"""What is less in a step may go into buffers."""


@dataclass
class _Claim:
    """What probes told, and what was thought before, bytes a second; until when it is news."""

    asked_s: float
    told: float
    before: float
    latency_s: Mapping[str, float]
    last_step: int


class ProbeTrust:
    """Holds what probes told against the next steps that tell it from what was thought before.

    Attributes
    ----------
    trouble : str
        Why probes are believed no more, or nothing.
    """

    def __init__(self) -> None:
        self._claim: _Claim | None = None
        self._wrong_s: float | None = None
        self.trouble = ""

    def again(self) -> None:
        """Believe them once more: the links are others than they were."""
        self.trouble = ""

    def probed(
        self, asked_s: float, before: float, now: float, latency_s: Mapping[str, float], step: int
    ) -> None:
        """Take what a round of probes has made of the bandwidth, and each mode's latency by then.

        ``asked_s`` is when that round was asked for.
        """
        if now >= _TIMES * before:
            self._claim = _Claim(asked_s, now, before, latency_s, step + _STEPS)
        elif self._claim is not None:
            self._claim.last_step = step + _STEPS

    def refuted_by(self, sample: StepSample) -> float | None:
        """Return the bandwidth that a step shows where it is not what probes told."""
        claim = self._claim
        if claim is None or sample.wire_s <= 0 or sample.sent_bytes < _LEAST_BYTES:
            return None
        hops = prior_of(sample.mode).hops(sample.ranks, sample.reductions)
        rest_s = hops * claim.latency_s[sample.mode]
        told_s = sample.sent_bytes / claim.told + rest_s
        before_s = sample.sent_bytes / claim.before + rest_s
        if sample.step > claim.last_step:
            self._claim = None
        elif before_s >= _TIMES * told_s:  # such a step tells the one from the other
            self._claim = None
            shown = sample.sent_bytes / max(sample.wire_s - rest_s, _LEAST_SHARE * sample.wire_s)
            nearer = abs(math.log(sample.wire_s / before_s)) < math.log(sample.wire_s / told_s)
            if nearer and sample.wire_s >= _TIMES * told_s:
                self._doubt(claim, shown)
                return shown
            self._wrong_s = None
        return None

    def _doubt(self, claim: _Claim, shown: float) -> None:
        # Of one round, whose answers come one after the other, no more than one counts.
        if self._wrong_s is not None and self._wrong_s != claim.asked_s:
            self.trouble = (
                f"links are probed no more for now: probes told of {8e-6 * claim.told:.3g} Mbit/s "
                f"where the allreduce has {8e-6 * shown:.3g} Mbit/s, twice; need "
                "TORCHLOOM_LINK_ADDRESS to be of the network that the allreduce goes over, or unset"
            )
        self._wrong_s = claim.asked_s
