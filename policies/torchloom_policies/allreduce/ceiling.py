"""An upper bound on the bandwidth of an allreduce, where probes measure more than steps show.

Cores may be slower than the links, or probes may use another network than the allreduce.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_TIMES = 2.0
"""A probed bandwidth this many times the estimate is verified by the next steps."""
_STEPS = 20
"""Steps after a probe that may verify it; later the bandwidth may have changed."""
_VOTES, _CLEAR_TIMES = 3, 5.0
"""Steps whose median decides; a single step decides if it is this many times slower."""
_LEAST_SHARE = 0.1
_DOUBLES_S, _LONGEST_S = 60.0, 3600.0
"""Doubling time of a ceiling: the link may have been slow by chance. It doubles each time."""


@dataclass
class _Claim:
    """A probed bandwidth and the estimate before it, at ``step``; ``last_step`` may verify it.

    ``shown`` has the bandwidth of each step that decides, inf if the step agrees with the probe.
    """

    proposed_s: float
    probed: float
    before: float
    latency_s: Mapping[str, float]
    step: int
    last_step: int
    shown: list[float] = field(default_factory=list)


class Ceiling:
    """Verifies a probed bandwidth by the next steps whose time depends on it.

    ``trouble`` is the alert text once two rounds of probes measured more than steps show.
    """

    def __init__(self) -> None:
        self._claim: _Claim | None = None
        self._wrong_s: float | None = None
        self._shown, self._shown_s = math.inf, 0.0
        self._doubles_s = _DOUBLES_S / 2
        self.trouble = ""

    def below(self, probed: float, known: float, now_s: float) -> float:
        """Return a probed bandwidth, limited to what an allreduce may reach, at least ``known``."""
        most = self._shown * 2.0 ** min((now_s - self._shown_s) / self._doubles_s, 60.0)
        return min(probed, max(most, known)) if known > 0 else probed

    def probed(
        self,
        proposed_s: float,
        before: float,
        now: float,
        latency_s: Mapping[str, float],
        step: int,
    ) -> None:
        """Take the bandwidth before and after a round of probes, and each mode's latency."""
        if now >= _TIMES * before:
            self._claim = _Claim(proposed_s, now, before, latency_s, step, step + _STEPS)
        elif self._claim is not None:
            self._claim.last_step = step + _STEPS

    def shown_by(self, sample: StepSample) -> float | None:
        """Return the bandwidth that steps show, if it refutes the probes."""
        claim = self._claim
        if claim is None or not sample.shows_wire or not sample.fills_links:
            return None
        if sample.step <= claim.step + 1:  # it began before the probes
            return None
        if sample.step > claim.last_step:
            self._claim = None
            return None
        hops = prior_of(sample.mode).hops(sample.ranks, sample.reductions)
        rest_s = hops * claim.latency_s[sample.mode]
        probed_s = sample.sent_bytes / claim.probed + rest_s
        before_s = sample.sent_bytes / claim.before + rest_s
        if before_s < _TIMES * probed_s:  # the step is compatible with both
            return None
        nearer = abs(math.log(sample.wire_s / before_s)) < math.log(sample.wire_s / probed_s)
        refutes = nearer and sample.wire_s >= _TIMES * probed_s
        carried_s = max(sample.wire_s - rest_s, _LEAST_SHARE * sample.wire_s)
        claim.shown.append(sample.sent_bytes / carried_s if refutes else math.inf)
        is_clear = refutes and sample.wire_s >= _CLEAR_TIMES * probed_s
        if len(claim.shown) < _VOTES and not is_clear:
            return None
        self._claim = None
        shown = claim.shown[-1] if is_clear else statistics.median(claim.shown)
        return None if math.isinf(shown) else self._lower(claim, shown, sample.now_s)

    def _lower(self, claim: _Claim, shown: float, now_s: float) -> float:
        self._shown, self._shown_s = shown, now_s
        # The results of one round arrive separately and count once.
        if self._wrong_s != claim.proposed_s:
            self._doubles_s = min(2 * self._doubles_s, _LONGEST_S)
            if self._wrong_s is not None and not self.trouble:
                self.trouble = (
                    f"probes measured more than the {8e-6 * shown:.3g} Mbit/s of the allreduce "
                    "twice and have little weight from now on. Unless slow cores are the cause, "
                    "set TORCHLOOM_LINK_ADDRESS to the network of the allreduce"
                )
        self._wrong_s = claim.proposed_s
        return shown
