"""A cost model of a step in each compression mode, fitted to measured steps."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchloom_core.plugin import Floats
from torchloom_policies.allreduce.coding_times import CodingTimes
from torchloom_policies.allreduce.link_filter import LinkFilter
from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_RECENT = 9
_FOR_ERROR = 30
_LEAST_LOG_SD = 0.02
_UNTRIED_LOG_SD = 0.05
_ENOUGH_STEPS = 3


@dataclass(frozen=True)
class StepCost:
    """The expected cost of a step.

    Attributes
    ----------
    step_s : float
        Seconds, on average over a round where ranks do not synchronise at every step.
    wire_s, exposed_s : float
        Seconds on the wire of a synchronisation, and those not overlapped by computing.
    carried_s : float
        Seconds for which its bytes alone occupy the link.
    every : float
        Steps from one synchronisation to the next.
    slope : (k,) array
        Gradient of the step's logarithm over the estimates of the :class:`LinkFilter`.
    own_log_sd : float
        Uncertainty specific to this mode: of its coding, and of the model.
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

    Attributes
    ----------
    modes : tuple of str
        The modes that it covers.
    link : LinkFilter
        The estimate of the links.
    """

    def __init__(self, modes: Iterable[str]) -> None:
        self.modes = tuple(modes)
        self.link = LinkFilter(self.modes)
        self._compute_s: deque[float] = deque(maxlen=_RECENT)
        self._overlap_s: dict[str, deque[float]] = {}
        self._code = CodingTimes()
        self._rest_s: dict[str, deque[float]] = {}
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

    def tried(self, mode: str) -> bool:
        """Return whether the mode has run."""
        return self._code.tried(mode)

    def tried_here(self, mode: str) -> bool:
        """Return whether the mode has run at about the present bandwidth."""
        return self._code.tried_at(mode, self._log_bandwidth)

    @property
    def _log_bandwidth(self) -> float:
        return math.log(self.link.bytes_per_s)

    def pass_time(self, seconds: float) -> None:
        """Increase the uncertainty of the links for the time that has passed."""
        self.link.pass_time(seconds)

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
            hops = prior_of(mode).hops(sample.ranks, sample.reductions)
            jumped = self.link.measure_wire(
                mode,
                sample.sent_bytes,
                hops,
                sample.wire_s,
                fills=sample.fills_links,
                own_s=sample.compute_s / sample.every + sample.compress_s,
            )
        self._code.take(mode, sample.compress_s / sample.gradient_bytes, self._log_bandwidth)
        self._compute_s.append(sample.compute_s / sample.every)
        self._recent(self._overlap_s, mode).append(sample.overlap_s)
        exposed_s = max(0.0, sample.wire_s - self._overlap())
        rest_s = sample.step_s - sample.compute_s - sample.compress_s - exposed_s
        self._recent(self._rest_s, mode).append(rest_s)
        return jumped

    def cost(
        self, mode: str, like: StepSample | None = None, *, times: float = 1.0, shift: float = 0.0
    ) -> StepCost | None:
        """Return the expected cost of a step in ``mode``, None before any measurement.

        Parameters
        ----------
        like : StepSample, optional
            A step with the gradient, ranks, reductions and round to assume; absent: the last.
        times : float
            Factor on the number of steps between two synchronisations.
        shift : float
            Added to the bandwidth's logarithm, to assume another bandwidth.
        """
        like = like or self._last
        if like is None or not self._compute_s or not self.link.known:
            return None
        every, prior = like.every * times, prior_of(mode)
        sent = prior.sent_share(like.ranks) * self._share.get(mode, 1.0) * like.gradient_bytes
        hops = prior.hops(like.ranks, like.reductions)
        wire_s, slope = self.link.wire(mode, sent, hops, shift)
        code, code_log_sd = self._code.expected(mode, self._log_bandwidth)
        exposed_s = max(0.0, wire_s - self._overlap())
        round_s = code * like.gradient_bytes + exposed_s + self._rest(mode)
        compute_s = _median(self._compute_s)
        step_s = max(compute_s + round_s / every, 0.5 * (compute_s + exposed_s / every), 1e-9)
        share_log_sd = 0.0 if mode in self._share else prior.share_log_sd
        wait_log_sd = 0.0 if self.tried(mode) else self.link.latency_log_sd(mode)
        waited_s = min(hops * self.link.latency_s(mode), exposed_s)
        own = math.hypot(
            code * like.gradient_bytes * code_log_sd / every / step_s,
            exposed_s * share_log_sd / every / step_s,
            waited_s * wait_log_sd / every / step_s,
            _LEAST_LOG_SD if self.tried(mode) else _UNTRIED_LOG_SD,
        )
        slope = slope * (exposed_s > 0) / every / step_s
        carried_s = sent * math.exp(-shift) / self.link.bytes_per_s
        return StepCost(step_s, wire_s, exposed_s, carried_s, every, slope, own)

    def faster(self, one: StepCost, than: StepCost) -> tuple[float, float]:
        """Return the logarithm of the speedup of ``one``, and its standard deviation.

        The uncertainty of the bandwidth is left out: the comparison is for one bandwidth.
        """
        gain = math.log(than.step_s / one.step_s)
        shared = self.link.variance((than.slope - one.slope) * self.link.beside_bandwidth)
        return gain, math.sqrt(shared + one.own_log_sd**2 + than.own_log_sd**2)

    def _rest(self, mode: str) -> float:
        """Return the unexplained time of a step: quorum, commit, launching.

        A mode with few steps uses that of the others: its steps may include an unrelated stall.
        """
        if len(self._rest_s.get(mode, ())) >= _ENOUGH_STEPS:
            return _median(self._rest_s[mode])
        enough = [seen for seen in self._rest_s.values() if len(seen) >= _ENOUGH_STEPS]
        return _median([_median(seen) for seen in enough or self._rest_s.values()])

    def _overlap(self) -> float:
        """Return the wire time that computing can overlap: the largest of any mode."""
        return max((_median(seen) for seen in self._overlap_s.values()), default=0.0)

    def _recent(self, of: dict[str, deque[float]], mode: str) -> deque[float]:
        return of.setdefault(mode, deque(maxlen=_RECENT))


def _median(values: Iterable[float]) -> float:
    """Return the median of a few numbers, 0 of none; ten times as fast as numpy here."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2 if ordered else 0.0
