"""Estimate bandwidth and latency, with uncertainties, from the times of messages.

A Kalman filter over logarithms (Särkkä, "Bayesian Filtering and Smoothing", 5.2). Its state is the
bandwidth; the share of it that each mode, and a probe, uses; and the latency of each mode's
messages, partly common to all modes. Steps in one mode thus also inform the estimates of the
others, each with its uncertainty.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

from torchloom_core.plugin import Floats
from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_LATENCY_S = 3e-4
_LATENCY_LOG_SDS = (1.2, 0.9)
"""Of the part common to all modes' latencies, and of the part specific to each."""
_LATENCY_LOG_SD = math.hypot(*_LATENCY_LOG_SDS)
_EFFICIENCY_LOG_SD = 0.05
"""Measured difference between bf16 and int8 (experiments/allreduce)."""
_PROBE_LOG_SD = 0.25
_LOST_LOG_SD = 2.0
"""Uncertainty at which the bandwidth counts as unknown."""
_WALK = (0.03, 0.01)
"""Drift of bandwidth and latency per second: a random walk of their logarithms."""
_JUMP = 4.0
_CLEAR_JUMP = math.log(3.0)
"""A smaller jump may be an outlier: it is accepted once the next step confirms it."""
_JUMP_LOG_SD = 0.4
"""Uncertainty after a jump: the first step may have begun before it."""
_LEAST_JUMP = math.log(1.5)
_NOISE = (0.03, 0.3)
_LEAST_NOISE_S = 0.001
_LATE_SHARE = 0.1
"""Delay of a late rank, as a share of computing and coding; it makes a step longer only."""
_RECENT = 15
_LEAST_SHARE = 0.1
_LONGER = 1.5
_INFORMATIVE_SHARES = (0.6, 0.7)
"""Minimum share of the bytes in the wire time of a step that shows the bandwidth; the second
applies after a step below the first, so that a sudden speedup of the link is noticed."""
_BLIND_WALK = 0.3
"""Drift of the bandwidth per second while steps send too little to show it."""
_BLIND_NOISE = 0.3
_BLIND_JUMP = math.log(2.5)
"""A change of the wire time that proves another bandwidth."""
_NOTABLE, _PLAUSIBLE = 0.5, 2.5
"""Standard deviations by which the latency may exceed its estimate."""
_BLIND_REACH = math.log(20.0)
_FAR_SD = 2.0
_BOUNDS = (math.log(1e3), math.log(1e13))
"""Of the bandwidth's logarithm; measurements beyond are implausible."""
_BANDWIDTH, _PROBE = range(2)
_ODD = math.log(1.5)
"""Deviation, as a logarithm, that makes a step an outlier and a probe worthwhile."""
_USUAL = 5
"""Steps after which the usual time is known; the first may belong to another mode."""
_ODDS = 4
"""Consecutive outliers that show a change: a single one may come from a rank that was late to all
messages of a step, for instance on a slow core, and not from a link."""


class LinkFilter:
    """Bandwidth of the slowest link, latency, and each mode's efficiency.

    It ``is_blind`` if the last step sent too little to show the bandwidth, and ``is_suspect`` if
    the times of such steps changed so much that the bandwidth may have changed.
    """

    def __init__(self, modes: Sequence[str]) -> None:
        count = len(modes)
        self._at = {mode: place for place, mode in enumerate(modes, 2)}
        self._waits = {mode: place for place, mode in enumerate(modes, 2 + count)}
        self._latencies, self._rest = slice(2 + count, None), slice(2 + count)
        own = [_EFFICIENCY_LOG_SD] * count
        common, each = np.square(_LATENCY_LOG_SDS)
        self._mean = np.zeros(2 + 2 * count)
        self._mean[list(self._at.values())] = [math.log(prior_of(mode).link_use) for mode in modes]
        self._mean[self._latencies] = math.log(_LATENCY_S)
        self._cov = np.diag(np.square([_LOST_LOG_SD, _PROBE_LOG_SD, *own, *[0.0] * count]))
        self._cov[self._latencies, self._latencies] = common + each * np.eye(count)
        self._misses: deque[float] = deque(maxlen=_RECENT)
        self._odd = 0.0
        self._ambiguity = 0.0
        self.is_blind = self.is_suspect = False
        self._usual = BaselineTime()
        self._seen: set[str] = set()
        self.known = False

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth, NaN before anything was measured."""
        return math.exp(self._mean[_BANDWIDTH]) if self.known else math.nan

    def latency_s(self, mode: str) -> float:
        """Return the time of an empty message, seconds."""
        return math.exp(self._mean[self._waits[mode]])

    def latency_log_sd(self, mode: str) -> float:
        """Return the standard deviation of its logarithm."""
        wait = self._waits[mode]
        return math.sqrt(self._cov[wait, wait])

    @property
    def log_sd(self) -> float:
        """Standard deviation of the bandwidth's logarithm."""
        return math.hypot(math.sqrt(self._cov[_BANDWIDTH, _BANDWIDTH]), self._ambiguity)

    @property
    def reach(self) -> float:
        """Upper bound on the error of the bandwidth's logarithm.

        While little is sent, the bandwidth may change without a sign.
        """
        return max(_FAR_SD * self.log_sd, _BLIND_REACH if self.is_blind else 0.0)

    def pass_time(self, seconds: float) -> None:
        """Increase the uncertainty for the time that has passed."""
        bandwidth, latency = _WALK
        walks = [(_BANDWIDTH, _BLIND_WALK if self.is_blind else bandwidth, _LOST_LOG_SD)]
        walks += [(wait, latency, _LATENCY_LOG_SD) for wait in self._waits.values()]
        for place, walk, most in walks:
            self._widen(place, walk**2 * seconds, most)

    def widen(self) -> None:
        """Increase the uncertainty of the bandwidth, because the links have changed."""
        self._widen(_BANDWIDTH, _LEAST_JUMP**2, _LOST_LOG_SD)

    def _widen(self, place: int, variance: float, most_log_sd: float) -> None:
        """Add to a variance, up to the value at which the estimate counts as unknown."""
        self._cov[place, place] += min(variance, max(0.0, most_log_sd**2 - self._cov[place, place]))

    def wire(
        self, mode: str, sent_bytes: float, hops: float, shift: float = 0.0
    ) -> tuple[float, Floats]:
        """Return the seconds on the wire, and their gradient over the estimates.

        ``shift`` is added to the bandwidth's logarithm.
        """
        log_bandwidth = self._mean[_BANDWIDTH] + shift + self._mean[self._at[mode]]
        carried_s = sent_bytes * math.exp(-log_bandwidth)
        gradient = np.zeros_like(self._mean)
        gradient[[_BANDWIDTH, self._at[mode]]] = -carried_s
        waited_s = gradient[self._waits[mode]] = hops * self.latency_s(mode)
        return carried_s + waited_s, gradient

    def variance_beside_bandwidth(self, gradient: Floats) -> float:
        """Return the variance due to all estimates except the bandwidth."""
        return self.variance(np.where(np.arange(len(gradient)) == _BANDWIDTH, 0.0, gradient))

    def variance(self, gradient: Floats) -> float:
        """Return the variance of a quantity with this gradient."""
        ambiguous = float(gradient[_BANDWIDTH]) * self._ambiguity
        return max(0.0, float(gradient @ self._cov @ gradient)) + ambiguous**2

    def measure_wire(self, sample: StepSample) -> bool:
        """Take a step's time on the wire; return whether the bandwidth has jumped."""
        mode, sent_bytes, wire_s = sample.mode, sample.sent_bytes, sample.wire_s
        hops = prior_of(mode).hops(sample.ranks, sample.reductions)
        was_blind, self.is_suspect = self.is_blind, False
        if self.known and mode not in self._seen:
            self._explain_by_latency(mode, sent_bytes, hops, wire_s)
        self._seen.add(mode)
        expected_s, gradient = self.wire(mode, sent_bytes, hops)
        # By the expected time: the step's own would select steps that were slow by chance.
        share = 1.0 - hops * self.latency_s(mode) / expected_s
        shows_bandwidth = not self.known or share >= _INFORMATIVE_SHARES[was_blind]
        self.is_blind = not (sample.fills_links and shows_bandwidth)
        if self.is_blind and self.known:
            if not was_blind:
                self._usual.forget()
            return self._measure_blind(mode, sent_bytes, hops, wire_s)
        own_s = sample.compute_s / sample.every + sample.compress_s
        late_s = _LATE_SHARE * own_s if self.known and wire_s > expected_s else 0.0
        relative = math.hypot(self._noise(), (_LEAST_NOISE_S + late_s) / wire_s)
        ambiguity = self._ambiguous(mode, hops, wire_s)
        if ambiguity < self._ambiguity:  # this step is more informative
            self._cov[_BANDWIDTH, _BANDWIDTH] += self._ambiguity**2 - ambiguity**2
            self._ambiguity = ambiguity
        miss, slope = math.log(wire_s / expected_s), gradient / expected_s
        limit = _JUMP * math.sqrt(self.variance(slope) + relative**2)
        odd = self.known and abs(miss) > max(limit, _LEAST_JUMP)
        jumped = odd and (abs(miss) > _CLEAR_JUMP or miss * self._odd > 0)
        self._odd = miss if odd else 0.0
        if odd and not jumped:
            return False
        if jumped or not self.known:
            # Solve for the bandwidth; the latency explains all but a minimum share.
            carried_s = max(wire_s - hops * self.latency_s(mode), _LEAST_SHARE * wire_s)
            log_sd = math.hypot(relative, _JUMP_LOG_SD if self.known else 0.0) * wire_s / carried_s
            self._restart(math.log(sent_bytes / carried_s), log_sd, self._at[mode])
            self._ambiguity, self.known = ambiguity, True
        else:
            self._misses.append(abs(miss))
            self._update(slope, miss, relative)
        return jumped

    def _explain_by_latency(self, mode: str, sent_bytes: float, hops: float, wire_s: float) -> None:
        """Attribute the first step of a mode that is slower than its bytes to its latency.

        A drop of the bandwidth at that very step is less likely.
        """
        carried_s = self.wire(mode, sent_bytes, 0.0)[0]
        needed_s = (wire_s - carried_s) / hops if hops > 0 else 0.0
        if needed_s <= self.latency_s(mode):
            return
        more, log_sd = math.log(needed_s / self.latency_s(mode)), self.latency_log_sd(mode)
        if _NOTABLE * log_sd < more < _PLAUSIBLE * log_sd:
            self._learn_latency(mode, 1.0, more, _BLIND_NOISE)

    def _learn_latency(self, mode: str, share: float, miss: float, log_sd: float) -> None:
        """Attribute an error to latency alone: the mode's, and the part common to all modes."""
        self._cov[self._latencies, self._rest] = self._cov[self._rest, self._latencies] = 0.0
        slope = np.zeros_like(self._mean)
        slope[self._waits[mode]] = share
        self._update(slope, miss, log_sd)

    def _measure_blind(self, mode: str, sent_bytes: float, hops: float, wire_s: float) -> bool:
        """Learn the latency; return whether the bandwidth must have changed.

        Outliers are ignored: their cause is unknown.
        """
        if not self._usual.take(wire_s):
            shift = self._usual.shift()
            return shift is not None and self._is_another(shift)
        if self._usual.is_first:
            return False
        expected_s, gradient = self.wire(mode, sent_bytes, hops)
        share = float(gradient[self._waits[mode]]) / expected_s
        self._learn_latency(mode, share, math.log(wire_s / expected_s), self._noise())
        return False

    def _is_another(self, shift: float) -> bool:
        """Return whether a shift of the usual time proves that the bandwidth has changed."""
        if abs(shift) > _BLIND_JUMP:
            self._restart(self._mean[_BANDWIDTH] - shift, 1.0)
            return True
        self.is_suspect = True
        self._widen(_BANDWIDTH, _BLIND_JUMP**2, _LOST_LOG_SD)
        return False

    def measure_link(self, bytes_per_s: float, log_sd: float) -> bool:
        """Take a probed bandwidth; return whether it has jumped.

        While steps show the bandwidth themselves, a probe far above them is ignored.
        """
        probed = math.log(bytes_per_s) - self._mean[_PROBE]
        miss, slope = probed - self._mean[_BANDWIDTH], np.zeros_like(self._mean)
        slope[[_BANDWIDTH, _PROBE]] = 1.0
        limit = _JUMP * math.sqrt(self.variance(slope) + log_sd**2)
        if self.known and not self.is_blind and miss > max(limit, _LEAST_JUMP):
            return False
        self._cov[_BANDWIDTH, _BANDWIDTH] += self._ambiguity**2
        self._ambiguity = 0.0
        jumped = self.known and abs(miss) > max(limit, _LEAST_JUMP)
        if jumped or not self.known:
            self._restart(math.log(bytes_per_s), log_sd, _PROBE)
            self.known = True
        else:
            self._update(slope, miss, log_sd)
        return jumped

    def measure_latency(self, latency_s: float) -> None:
        """Take a probed latency."""
        slope = np.zeros_like(self._mean)
        slope[self._latencies] = 1.0 / len(self._waits)
        self._update(slope, math.log(latency_s) - float(slope @ self._mean), 1.0)

    def _ambiguous(self, mode: str, hops: float, wire_s: float) -> float:
        """Return the part of the bandwidth's logarithm that a longer latency could explain.

        More steps of the same kind do not resolve it, so it is kept apart from the filter.
        """
        latency_s = hops * self.latency_s(mode)
        longer_s = latency_s * math.exp(_LONGER * self.latency_log_sd(mode))
        least_s = _LEAST_SHARE * wire_s
        apart = max(wire_s - latency_s, least_s) / max(wire_s - longer_s, least_s)
        return min(math.log(apart), _LOST_LOG_SD)

    def _noise(self) -> float:
        if len(self._misses) < _RECENT:
            return 0.1
        return min(max(1.48 * float(np.median(self._misses)), _NOISE[0]), _NOISE[1])

    def _restart(self, log_bandwidth: float, log_sd: float, by: int | None = None) -> None:
        """Reset the bandwidth; ``by`` is the index of the mode or probe that measured it."""
        self._cov[_BANDWIDTH] = self._cov[:, _BANDWIDTH] = 0.0
        self._mean[_BANDWIDTH] = log_bandwidth
        if by is not None:
            self._mean[_BANDWIDTH] -= self._mean[by]
            self._cov[_BANDWIDTH] = self._cov[:, _BANDWIDTH] = -self._cov[by]
            log_sd = math.hypot(log_sd, math.sqrt(self._cov[by, by]))
        self._mean[_BANDWIDTH] = min(max(self._mean[_BANDWIDTH], _BOUNDS[0]), _BOUNDS[1])
        self._cov[_BANDWIDTH, _BANDWIDTH] = min(log_sd, 2 * _LOST_LOG_SD) ** 2

    def _update(self, slope: Floats, miss: float, log_sd: float) -> None:
        spread = self._cov @ slope
        weight = spread / (slope @ spread + log_sd**2)
        self._mean += weight * miss
        self._cov -= np.outer(weight, spread)
        self._cov = (self._cov + self._cov.T) / 2


class BaselineTime:
    """Separates outliers from usual steps, and detects a change of the usual time."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_RECENT)
        self._odds: deque[float] = deque(maxlen=_ODDS)

    @property
    def is_first(self) -> bool:
        """Whether only one step was taken; it may include a wait for earlier messages."""
        return len(self._logs) == 1

    def forget(self) -> None:
        """Drop all steps."""
        self._logs.clear()
        self._odds.clear()

    def take(self, wire_s: float) -> bool:
        """Take a step's time; return whether it is usual."""
        took = math.log(wire_s)
        usual = statistics.median(self._logs) if len(self._logs) >= _USUAL else took
        if abs(took - usual) > _ODD:
            self._odds.append(took - usual)
            return False
        self._odds.clear()
        self._logs.append(took)
        return True

    def shift(self) -> float | None:
        """Return by how much the logarithm has changed, once enough outliers have shown it.

        Their time is the usual one from then on; a change back is detected in the same way.
        """
        if len(self._odds) < _ODDS:
            return None
        odd = statistics.median(self._odds)
        usual = statistics.median(self._logs) + odd
        self.forget()
        self._logs.extend([usual] * _USUAL)
        return odd
