"""A cost model of a step in each compression mode, fitted to measured steps."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from torchloom_core.plugin import Floats
from torchloom_policies.allreduce.link_filter import LinkFilter
from torchloom_policies.allreduce.modes import NONE, prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_RECENT = 9
_RECENT_CODED = 15
_FOR_ERROR = 30
_LEAST_LOG_SD = 0.02
_UNTRIED_LOG_SD = 0.05
_ENOUGH_STEPS = 3
_ELSEWHERE = math.log(2.5)
"""Largest distance, as a logarithm, between bandwidths that count as the same."""
_ELSEWHERE_LOG_SD = 0.35
"""Ranks that wait for the wire have free cores to code, so a time measured at another bandwidth
may be off by a third."""


@dataclass(frozen=True)
class StepCost:
    """The expected cost of a step, on average over a round of ``every`` steps.

    A synchronisation is ``wire_s`` on the wire, of which ``exposed_s`` are not overlapped by
    computing; its bytes alone occupy the link for ``carried_s``. ``slope`` is the gradient of the
    step's logarithm over the estimates of the :class:`LinkFilter`, ``own_log_sd`` the uncertainty
    specific to this mode: of its coding, and of the model.
    """

    step_s: float
    wire_s: float
    exposed_s: float
    carried_s: float
    every: float
    slope: Floats
    own_log_sd: float


class CostModel:
    """The cost of a step: computing, coding, and the wire time that is not overlapped.

    ``step = compute + code(mode) + max(0, wire - overlap) + rest(mode)`` with ``wire =
    bytes(mode, ranks) / bandwidth + hops(mode, ranks) * latency``: Hockney's model of a message
    ("The communication challenge for MPP", 1994) with what a collective sends (Thakur, Rabenseifner
    and Gropp, "Optimization of collective communication operations in MPICH", 2005). Computing is
    that of the slowest worker; waiting for it is not wire time. Bytes and coding of a mode are
    assumed (:mod:`torchloom_policies.allreduce.modes`) until it has run, then measured.
    """

    def __init__(self, modes: Iterable[str]) -> None:
        self.modes = tuple(modes)
        self.link = LinkFilter(self.modes)
        self._compute_s: deque[float] = deque(maxlen=_RECENT)
        self._overlap_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self.code = CodingTimes()
        self._rest_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._share: dict[str, float] = {}
        self._misses: deque[float] = deque(maxlen=_FOR_ERROR)
        self._last: StepSample | None = None

    @property
    def error(self) -> float:
        """Median relative error of past predictions; NaN before the first."""
        return math.expm1(float(np.median(self._misses))) if self._misses else math.nan

    @property
    def ready(self) -> bool:
        """Whether the model can predict a step."""
        return self._last is not None and self.link.known

    @property
    def bucket_bytes(self) -> float:
        """Mean size of a reduction, bytes."""
        return self._last.gradient_bytes / self._last.reductions if self._last else 0.0

    def tried_here(self, mode: str) -> bool:
        """Return whether the mode has run at about the present bandwidth."""
        return self.code.tried_at(mode, self._log_bandwidth)

    @property
    def _log_bandwidth(self) -> float:
        return math.log(self.link.bytes_per_s)

    def learn(self, sample: StepSample) -> bool:
        """Take a measured step; return whether the bandwidth has jumped."""
        expected = self.cost(sample.mode, sample)
        if expected is not None:
            self._misses.append(abs(math.log(expected.step_s / sample.mean_s)))
        mode, self._last, jumped = sample.mode, sample, False
        share = prior_of(mode).sent_share(sample.ranks)
        if share > 0:
            self._share[mode] = sample.sent_bytes / sample.gradient_bytes / share
        if sample.shows_wire:
            jumped = self.link.measure_wire(sample)
        self.code.take(mode, sample.compress_s / sample.gradient_bytes, self._log_bandwidth)
        self._compute_s.append(sample.compute_s / sample.every)
        self._overlap_s[mode].append(sample.overlap_s)
        exposed_s = max(0.0, sample.wire_s - self._overlap())
        rest_s = sample.step_s - sample.compute_s - sample.compress_s - exposed_s
        self._rest_s[mode].append(rest_s)
        return jumped

    def cost(
        self, mode: str, like: StepSample | None = None, *, times: float = 1.0, shift: float = 0.0
    ) -> StepCost | None:
        """Return the expected cost of a step in ``mode``, None before any measurement.

        Gradient, ranks, reductions and round are those of the step ``like``, by default the last,
        but with ``times`` the steps between two synchronisations. ``shift`` is added to the
        bandwidth's logarithm.
        """
        like = like or self._last
        if like is None or not self._compute_s or not self.link.known:
            return None
        every, prior = like.every * times, prior_of(mode)
        sent = prior.sent_share(like.ranks) * self._share.get(mode, 1.0) * like.gradient_bytes
        hops = prior.hops(like.ranks, like.reductions)
        wire_s, slope = self.link.wire(mode, sent, hops, shift)
        code, code_log_sd = self.code.expected(mode, self._log_bandwidth)
        exposed_s = max(0.0, wire_s - self._overlap())
        round_s = code * like.gradient_bytes + exposed_s + self._rest(mode)
        compute_s = median(self._compute_s)
        step_s = max(compute_s + round_s / every, 0.5 * (compute_s + exposed_s / every), 1e-9)
        share_log_sd = 0.0 if mode in self._share else prior.share_log_sd
        wait_log_sd = 0.0 if self.code.tried(mode) else self.link.latency_log_sd(mode)
        waited_s = min(hops * self.link.latency_s(mode), exposed_s)
        own = math.hypot(
            code * like.gradient_bytes * code_log_sd / every / step_s,
            exposed_s * share_log_sd / every / step_s,
            waited_s * wait_log_sd / every / step_s,
            _LEAST_LOG_SD if self.code.tried(mode) else _UNTRIED_LOG_SD,
        )
        slope = slope * (exposed_s > 0) / every / step_s
        carried_s = sent * math.exp(-shift) / self.link.bytes_per_s
        return StepCost(step_s, wire_s, exposed_s, carried_s, every, slope, own)

    def faster(self, one: StepCost, than: StepCost) -> tuple[float, float]:
        """Return the logarithm of the speedup of ``one``, and its standard deviation.

        The uncertainty of the bandwidth is left out: the comparison is for one bandwidth.
        """
        gain = math.log(than.step_s / one.step_s)
        shared = self.link.variance_beside_bandwidth(than.slope - one.slope)
        return gain, math.sqrt(shared + one.own_log_sd**2 + than.own_log_sd**2)

    def _rest(self, mode: str) -> float:
        """Return the unexplained time of a step: quorum, commit, launching.

        A mode with few steps uses that of the others: its steps may include an unrelated stall.
        """
        if len(self._rest_s.get(mode, ())) >= _ENOUGH_STEPS:
            return median(self._rest_s[mode])
        enough = [seen for seen in self._rest_s.values() if len(seen) >= _ENOUGH_STEPS]
        return median([median(seen) for seen in enough or self._rest_s.values()])

    def _overlap(self) -> float:
        """Return the wire time that computing can overlap: the largest of any mode."""
        return max((median(seen) for seen in self._overlap_s.values()), default=0.0)


class CodingTimes:
    """Coding seconds per byte of gradient; less certain at another bandwidth."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def take(self, mode: str, s_per_byte: float, log_bandwidth: float) -> None:
        """Take the coding time of a step."""
        if not self.tried(mode):  # the first step allocates memory and may be slow
            prior = prior_of(mode)
            most = prior.code_ns_per_byte * 1e-9 * math.exp(prior.code_log_sd)
            s_per_byte = min(s_per_byte, most)
        self._seen.setdefault(mode, deque(maxlen=_RECENT_CODED)).append((s_per_byte, log_bandwidth))

    def tried(self, mode: str) -> bool:
        """Return whether the mode has run."""
        return mode in self._seen

    def tried_at(self, mode: str, log_bandwidth: float) -> bool:
        """Return whether the mode has run at about this bandwidth."""
        return bool(self._here(mode, log_bandwidth))

    def expected(self, mode: str, log_bandwidth: float) -> tuple[float, float]:
        """Return seconds per byte, and the standard deviation of their logarithm."""
        prior = prior_of(mode)
        if not self.tried(mode):
            return prior.code_ns_per_byte * 1e-9, prior.code_log_sd
        here = self._here(mode, log_bandwidth)
        seen = here or [each for each, _ in self._seen[mode]]
        middle = median(seen)
        if middle <= 0 or mode == NONE:
            return max(0.0, middle), 0.0
        off = float(np.median(np.abs(np.array(seen) / middle - 1.0)))
        log_sd = max(0.05, min(1.85 * off, prior.code_log_sd)) / math.sqrt(len(seen))
        return middle, log_sd if here else math.hypot(log_sd, _ELSEWHERE_LOG_SD)

    def _here(self, mode: str, log_bandwidth: float) -> list[float]:
        seen = self._seen.get(mode, ())
        return [each for each, at in seen if abs(at - log_bandwidth) <= _ELSEWHERE]
