"""What an allreduce carries however fast its links are: cores may be slower than what they send on.

And probes may go over another network. Either way they tell of more than steps ever show.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_TIMES = 2.0
"""So many times as fast as it was thought to be, a link is believed only for now."""
_STEPS = 20
"""What the allreduce shows later may be another bandwidth."""
_VOTES, _CLEAR_TIMES = 3, 5.0
"""Steps whose median decides, as one may be slow by chance; but not so many times as slow."""
_LEAST_SHARE = 0.1
_DOUBLES_S, _LONGEST_S = 60.0, 3600.0
"""In which a ceiling doubles: the link may have been slow by chance. Twice as long each time."""


@dataclass
class _Claim:
    """What probes told, and what was thought before, bytes a second.

    ``step`` was the newest then, ``last_step`` is the last one to which it is news; ``shown`` is
    the bandwidth by each step that tells, inf by one that the probes foretold.
    """

    asked_s: float
    told: float
    before: float
    latency_s: Mapping[str, float]
    step: int
    last_step: int
    shown: list[float] = field(default_factory=list)


class Ceiling:
    """Holds what probes told against the next steps that tell it from what was thought before.

    Attributes
    ----------
    trouble : str
        That probes tell of more than steps show, once two rounds did; or nothing.
    """

    def __init__(self) -> None:
        self._claim: _Claim | None = None
        self._wrong_s: float | None = None
        self._shown, self._shown_s = math.inf, 0.0
        self._doubles_s = _DOUBLES_S / 2
        self.trouble = ""

    def below(self, told: float, known: float, now_s: float) -> float:
        """Return what of a probed bandwidth an allreduce may well carry, bytes a second.

        Parameters
        ----------
        known : float
            What is thought of the link so far: steps may show more than they once did.
        """
        most = self._shown * 2.0 ** min((now_s - self._shown_s) / self._doubles_s, 60.0)
        return min(told, max(most, known)) if known > 0 else told

    def probed(
        self, asked_s: float, before: float, now: float, latency_s: Mapping[str, float], step: int
    ) -> None:
        """Take what a round of probes has made of the bandwidth, and each mode's latency by then.

        ``asked_s`` is when that round was asked for.
        """
        if now >= _TIMES * before:
            self._claim = _Claim(asked_s, now, before, latency_s, step, step + _STEPS)
        elif self._claim is not None:
            self._claim.last_step = step + _STEPS

    def shown_by(self, sample: StepSample) -> float | None:
        """Return the bandwidth that steps show where it is not what probes told."""
        claim = self._claim
        if claim is None or not sample.tells_wire or not sample.fills_links:
            return None
        if sample.step <= claim.step + 1:  # it had begun before they were asked
            return None
        if sample.step > claim.last_step:
            self._claim = None
            return None
        hops = prior_of(sample.mode).hops(sample.ranks, sample.reductions)
        rest_s = hops * claim.latency_s[sample.mode]
        told_s = sample.sent_bytes / claim.told + rest_s
        before_s = sample.sent_bytes / claim.before + rest_s
        if before_s < _TIMES * told_s:  # such a step does not tell the one from the other
            return None
        nearer = abs(math.log(sample.wire_s / before_s)) < math.log(sample.wire_s / told_s)
        refutes = nearer and sample.wire_s >= _TIMES * told_s
        carried_s = max(sample.wire_s - rest_s, _LEAST_SHARE * sample.wire_s)
        claim.shown.append(sample.sent_bytes / carried_s if refutes else math.inf)
        is_clear = refutes and sample.wire_s >= _CLEAR_TIMES * told_s
        if len(claim.shown) < _VOTES and not is_clear:
            return None
        self._claim = None
        shown = claim.shown[-1] if is_clear else statistics.median(claim.shown)
        return None if math.isinf(shown) else self._lower(claim, shown, sample.now_s)

    def _lower(self, claim: _Claim, shown: float, now_s: float) -> float:
        self._shown, self._shown_s = shown, now_s
        # Of one round, whose answers come one after the other, no more than one counts.
        if self._wrong_s != claim.asked_s:
            self._doubles_s = min(2 * self._doubles_s, _LONGEST_S)
            if self._wrong_s is not None and not self.trouble:
                self.trouble = (
                    f"probes told of more than the {8e-6 * shown:.3g} Mbit/s that the allreduce "
                    "has, twice: it hardly counts from now on. Unless the cores are what is slow, "
                    "need TORCHLOOM_LINK_ADDRESS to be of the network that the allreduce goes over"
                )
        self._wrong_s = claim.asked_s
        return shown
