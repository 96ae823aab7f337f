"""Limit the rate of checkpoint uploads while the network is busier than usual."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    CHECKPOINT_TIERS,
    SECOND_NS,
    TRAFFIC_NEEDS,
    ChangeKnob,
    FleetView,
    Need,
    NeedForecast,
    Outlook,
    PolicyNeed,
    Positive,
    Proposal,
    Registry,
    Share,
    Traffic,
    hookimpl,
)
from torchloom_policies.checkpoint_interval.tiers import FELT_NEEDS, least_felt_s
from torchloom_policies.number_knobs import numbers, within

_TOLERANCE = 1.2
"""A limit that is off by no more than this factor stays."""

_CERTAIN = 1.0 - 1e-12


class UploadsPolicy:
    """Limit the upload rate so that an upload ends just before the next checkpoint, or lift it.

    A limit does not reduce the number of bytes. On a constantly busy network a slow upload delays
    the steps as much as a fast one (:class:`~torchloom_core.plugin.Traffic`), and leaves the work
    at risk for longer. A limit moves bytes to a later time. That pays if the network is busier
    now than at the median of the run's last hour, because most of the slow upload may then have
    the usual cost. With ``confidence`` as the probability of that, a limit is proposed if

        confidence x (cost of an upload now - usual cost) > p x interval x run's GPUs

    and lifted once the right side exceeds the difference of costs. ``p`` is the probability that
    the run fails in the time by which the slow upload ends later: an incomplete checkpoint is
    lost, and an interval of work with it. The failure rate is derived from the interval by
    Young's rule: an interval ``I`` and a save of ``C`` seconds imply ``2 C / I^2``. ``C`` is what
    ``loom.checkpoints`` reports as measured, else ``costs.checkpoint_s``. A forecast adds to it.

    Where a script saves in several tiers, the limit is that of the tier with the shortest
    interval, so that its copies on other nodes are complete before the next.

    The limit is a knob that the script offers; see docs/policy.md for its upload function.
    """

    name = "uploads"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.uploads]``."""

        knob: str = "upload_bytes_per_s"
        """The knob that limits the bytes per second of a worker's upload; 0: no limit."""
        interval: str = "checkpoint_interval_s"
        """The knob, or the metric, with the time between two checkpoints, seconds."""
        upload_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
        """Share of the interval that a limited upload takes, above 0, to 1."""
        confidence: Share = 0.5
        """Probability that the network returns to its usual load before the next checkpoint."""
        again_s: Positive = 600.0
        """The same limit is proposed again after this time, seconds."""
        predictor: str = ""
        """Predictor whose forecasts add to the risk, from ``[predictors]``. Empty: none."""
        accept_unskilled: bool = False
        """Act also on a fitted model whose model card rates it below useful."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._traffic = Traffic()
        self._outlook = Outlook(options.predictor)
        self._proposed, self._proposed_ns = -1.0, 0
        self.needs: tuple[PolicyNeed, ...] = (
            *TRAFFIC_NEEDS,
            *FELT_NEEDS,
            Need(options.interval),
        )
        if options.predictor:
            forecast = NeedForecast(options.predictor, skilled=not options.accept_unskilled)
            self.needs = (*self.needs, forecast)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose another limit, or none, if the present one does not pay."""
        self._traffic.look(view)
        training = np.flatnonzero(view.is_in("training")).tolist()
        limits = numbers(self._options.knob, training, view)
        interval_s = self._interval_s(training, view)
        size_bytes = self._traffic.state_bytes
        if not limits or not interval_s or math.isnan(size_bytes) or not _save_s(view):
            return
        rate = size_bytes / (self._options.upload_share * interval_s)
        wanted = within(view.knob_specs[self._options.knob], rate)
        stakes = self._stakes(wanted, interval_s, view)
        value = self._value(wanted, limits, stakes)
        if value is None or not self._is_news(value, view.now_ns):
            return
        saved_gpu_s = max(0.0, stakes.saved_gpu_s)
        gain_gpu_s, cost_gpu_s = stakes.risk_gpu_s, saved_gpu_s
        if value:
            gain_gpu_s, cost_gpu_s = saved_gpu_s, stakes.risk_gpu_s
        yield Proposal(
            action=ChangeKnob(knob=self._options.knob, value=value),
            reason=(
                f"{self._traffic.in_words('an upload', size_bytes)}, and usually "
                f"{stakes.usual_gpu_s:.0f}; an upload until the next checkpoint risks "
                f"{interval_s:.0f} s of work with probability {stakes.fails:.2g}: "
                f"{stakes.risk_gpu_s:.0f} GPU-s"
            ),
            gain_gpu_s=gain_gpu_s,
            cost_gpu_s=cost_gpu_s,
            confidence=self._options.confidence if value else 1.0,
            cause=(self._outlook.id,) if self._outlook.id else (),
        )

    def _stakes(self, wanted: float, interval_s: float, view: FleetView) -> "_Stakes":
        """Return the saving and the risk of an upload at the rate ``wanted``."""
        traffic, size_bytes = self._traffic, self._traffic.state_bytes
        usual_gpu_s = traffic.usual_gpu_s(size_bytes)
        fast_s = traffic.transfer_s(size_bytes)
        late_s = interval_s if wanted == 0 else size_bytes / wanted
        late_s -= 0.0 if math.isnan(fast_s) else min(late_s, fast_s)
        gpus = view.costs.gpus_per_worker * int(np.count_nonzero(view.is_in("training", "paused")))
        fails = self._fails(late_s, interval_s, view)
        return _Stakes(
            usual_gpu_s=usual_gpu_s,
            saved_gpu_s=traffic.transfer_gpu_s(size_bytes) - usual_gpu_s,
            fails=fails,
            risk_gpu_s=fails * interval_s * gpus,
        )

    def _value(self, wanted: float, limits: list[float], stakes: "_Stakes") -> float | None:
        """Return the limit to set, 0 for none, or None for no change."""
        expected_gpu_s = self._options.confidence * stakes.saved_gpu_s
        if 0 < wanted < self._traffic.bytes_per_s and expected_gpu_s > stakes.risk_gpu_s:
            is_right = all(_is_near(limit, wanted) for limit in limits)
            return None if is_right else wanted
        if max(limits) > 0 and stakes.risk_gpu_s > max(0.0, stakes.saved_gpu_s):
            return 0
        return None

    def _fails(self, late_s: float, interval_s: float, view: FleetView) -> float:
        """Return the probability that the run fails within ``late_s``."""
        log_survival = -(late_s / interval_s) * 2.0 * _save_s(view) / interval_s
        if self._options.predictor:
            p = self._outlook.probability(view)[view.is_in("training", "paused")]
            p = np.minimum(p[p > 0], _CERTAIN)
            if len(p):
                share = min(1.0, late_s / self._outlook.rest_s)
                log_survival += share * float(np.log1p(-p).sum())
        return -math.expm1(log_survival)

    def _is_news(self, value: float, now_ns: int) -> bool:
        """Return whether this was not proposed within ``again_s``, and remember it."""
        lately = now_ns - self._proposed_ns < self._options.again_s * SECOND_NS
        if lately and _is_near(self._proposed, value):
            return False
        self._proposed, self._proposed_ns = value, now_ns
        return True

    def _interval_s(self, training: list[int], view: FleetView) -> float:
        """Return the shortest checkpoint interval of any worker and tier, 0 if unknown."""
        values = view.latest(self._options.interval)[training].tolist()
        knobs = {self._options.interval, *(tier.knob for tier in CHECKPOINT_TIERS.values())}
        for knob in sorted(knobs):
            values += numbers(knob, training, view)
        return min((value for value in values if 1.0 <= value < math.inf), default=0.0)


@dataclass(frozen=True)
class _Stakes:
    """Saving and risk of a slow upload."""

    usual_gpu_s: float
    saved_gpu_s: float
    fails: float
    risk_gpu_s: float


def _save_s(view: FleetView) -> float:
    """Return what a save costs, as measured or else by the config."""
    felt_s = least_felt_s(view)
    return view.costs.checkpoint_s if felt_s is None else felt_s


def _is_near(one: float, other: float) -> bool:
    return other / _TOLERANCE <= one <= other * _TOLERANCE


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(UploadsPolicy)
