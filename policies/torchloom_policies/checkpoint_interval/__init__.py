"""Set the checkpoint intervals by the measured failure rate and cost of a save."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from torchloom_core.plugin import (
    TRAFFIC_NEEDS,
    ChangeKnob,
    FleetView,
    NeedFaults,
    NeedForecast,
    NotNegative,
    PolicyNeed,
    Positive,
    Proposal,
    Registry,
    RunFailures,
    Traffic,
    ettr,
    hookimpl,
    tier_intervals_s,
)
from torchloom_policies.checkpoint_interval.at_once import SaveAtOnce
from torchloom_policies.checkpoint_interval.tiers import (
    FELT_NEEDS,
    PATH,
    REMOTE,
    UNSAVED_NEEDS,
    Tier,
    least_felt_s,
    offered,
)
from torchloom_policies.number_knobs import within

_DAY_S = 86_400.0
_UPLOADS = "upload_bytes_per_s"


class CheckpointIntervalPolicy:
    """Propose the interval of each tier that maximizes ETTR, and a save before a forecast failure.

    The run's failure rate has a gamma prior of ``prior_failures`` failures at
    ``prior_failures_per_node_day``; after n failures in E node-seconds of training its posterior
    mean is ``(prior_failures + n) / (prior_failures / prior rate + E)`` (Gelman et al.,
    "Bayesian Data Analysis", 2.6). Only failures that roll the run back need a checkpoint; with
    torchft the other groups usually continue. The share of rollbacks is therefore measured,
    (1 + rollbacks) / (1 + failures watched), the mean of a beta distribution whose prior is one
    rollback (:class:`torchloom_core.plugin.RunFailures`). A recovery from a local checkpoint
    counts as a rollback too.

    Each tier whose knob the script offers, ``checkpoint_memory_interval_s``, ``knob`` and
    ``checkpoint_remote_interval_s``, is for the failures that no tier before it survives: the
    memory of nodes for those of a process or one node, the path for those of several nodes, the
    remote tier for those of several racks. Their shares are measured, with a prior of one failure
    of which a tenth is beyond a node, and a tenth of that beyond a rack. A tier's M is 1 / (rate x
    share of rollbacks x its own share x nodes that train), and its interval Daly's higher-order
    optimum for M and for what a save costs (:func:`torchloom_core.plugin.tier_intervals_s`),
    within the knob's range. If all saves together would take more than ``overhead`` of the time,
    all intervals are stretched by the same factor. The gain is the difference in
    :func:`~torchloom_core.plugin.ettr` over ``period_s``. An interval is proposed if it differs by
    more than ``tolerance`` from the present value and from any proposal within the last
    ``period_s``: the optimum is flat. The overhead is held for what a save costs up to
    ``tolerance`` more than measured.

    What a save costs is what the run feels of it: the metrics ``checkpoint_felt_s``,
    ``checkpoint_memory_felt_s`` and ``checkpoint_remote_felt_s``, which ``loom.checkpoints``
    reports. The path costs ``costs.checkpoint_s`` without one; the other tiers wait for theirs.
    Where a script without the metric offers the knob ``upload_bytes_per_s``, checkpoints share the
    network with the steps. A save then costs ``costs.checkpoint_s`` plus the time by which the
    upload of the state delays the run (:class:`~torchloom_core.plugin.Traffic`): the median of the
    last hour for the interval, the present value for an immediate checkpoint.

    With a ``predictor``, a checkpoint is saved at once if

        p x unsaved work x run's GPUs > cost of a save x run's GPUs

    where p is the probability that a worker of the run fails before the next regular checkpoint
    (Aupy, Robert, Vivien and Zaidouni, "Checkpointing algorithms and fault prediction", 2014).
    The unsaved work is the trainer's metric ``unsaved_work_s``, or ``unsaved_memory_s`` where the
    memory of nodes is a tier, or else ``costs.unsaved_s``. A forecast leads to one save per
    horizon, unless its odds have doubled.
    """

    name = "checkpoint_interval"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.checkpoint_interval]``."""

        knob: str = "checkpoint_interval_s"
        """The knob that sets the work between two checkpoints, seconds, for the whole run."""
        overhead: Positive = 0.035
        """Largest share of the time that the saves of all tiers together may take."""
        prior_failures_per_node_day: Positive = 0.0065
        """Failure rate assumed before any data; Meta's clusters had 0.0023 and 0.0065."""
        prior_failures: Positive = 1.0
        """Weight of that prior, in failures."""
        incident_s: NotNegative = 300.0
        """Faults of the run closer than this are one failure, seconds."""
        memory_s: Positive = 30 * _DAY_S
        """Faults of the run's nodes in this time before the policy starts count, seconds."""
        tolerance: Positive = 0.2
        """Propose no change smaller than this share of the present interval."""
        period_s: Positive = _DAY_S
        """Time over which the gain is counted, seconds."""
        predictor: str = ""
        """Predictor whose forecasts trigger saves, from ``[predictors]``. Empty: none."""
        accept_unskilled: bool = False
        """Act also on a fitted model whose model card rates it below useful."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = RunFailures(options.incident_s)
        self._traffic = Traffic()
        self._proposed: dict[str, tuple[float, int]] = {}
        self.needs: Sequence[PolicyNeed] = (
            NeedFaults(options.memory_s),
            *TRAFFIC_NEEDS,
            *FELT_NEEDS,
        )
        self._at_once: SaveAtOnce | None = None
        if options.predictor:
            self._at_once = SaveAtOnce(options.predictor)
            forecast = NeedForecast(options.predictor, skilled=not options.accept_unskilled)
            self.needs = (*self.needs, *UNSAVED_NEEDS, forecast)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Count failures; propose other intervals, or a checkpoint at once."""
        self._traffic.look(view)
        training = np.flatnonzero(view.is_in("training", "paused")).tolist()
        self._failures.look(view, training, least_felt_s(view))
        if not training:
            return
        tiers = offered(self._options.knob, training, view, self._failures)
        yield from self._intervals(tiers, view)
        if self._at_once is not None:
            upload_s = self._traffic.delay_s(self._traffic.state_bytes)
            saved = [tier for tier in tiers if tier.name != REMOTE]
            costs_s = [tier.save_s for tier in saved if tier.save_s is not None]
            save_s = sum(costs_s) if costs_s else _unmeasured_s(upload_s, view)
            yield from self._at_once.proposals(tiers, save_s, training, view)

    def _intervals(self, tiers: Sequence[Tier], view: FleetView) -> Iterator[Proposal]:
        upload_s = self._traffic.usual_delay_s(self._traffic.state_bytes)
        rate_per_s = self._rate_per_s() * self._failures.rollbacks.share
        costs: dict[Tier, tuple[float, float]] = {}
        for tier in tiers:
            save_s = tier.save_s
            if save_s is None and tier.name == PATH:
                save_s = _unmeasured_s(upload_s, view)
            if save_s is not None:
                costs[tier] = save_s, 1.0 / (rate_per_s * tier.share)
        overhead = sum(save_s / max(min(tier.values), 1e-9) for tier, (save_s, _) in costs.items())
        is_too_often = overhead > self._options.overhead
        most = self._options.overhead / (1.0 + self._options.tolerance)
        for tier, interval_s in zip(costs, tier_intervals_s([*costs.values()], most), strict=True):
            proposal = self._interval(tier, *costs[tier], interval_s, view, is_too_often)
            if proposal is not None:
                yield proposal

    def _interval(
        self,
        tier: Tier,
        save_s: float,
        mtbf_s: float,
        interval_s: float,
        view: FleetView,
        is_too_often: bool,
    ) -> Proposal | None:
        """Return the proposal of a tier's interval, if it is news and pays."""
        options, costs = self._options, view.costs
        wanted = within(view.knob_specs[tier.knob], interval_s)
        present = max(dict.fromkeys(tier.values), key=lambda value: _distance(value, wanted))
        if not self._is_news(tier.knob, present, wanted, view.now_ns):
            return None
        before, after = (
            ettr(
                interval_s,
                save_s=save_s,
                mtbf_s=mtbf_s,
                restart_s=costs.restart_s,
                detect_s=costs.detect_s,
            )
            for interval_s in (present, wanted)
        )
        gain, bound = after - before, ""
        if is_too_often and wanted > present:
            gain = max(gain, save_s / present - save_s / wanted)
            bound = f"Saves may take {options.overhead:.1%} of the time, and take more. "
        if gain <= 0:
            return None
        self._proposed[tier.knob] = wanted, view.now_ns
        gpus = costs.gpus_per_worker * int(np.count_nonzero(view.is_in("training", "paused")))
        return Proposal(
            action=ChangeKnob(knob=tier.knob, value=wanted),
            reason=(
                f"{self._failures.count} failures in {self._failures.node_s / _DAY_S:.1f} "
                f"node-days, {self._failures.rollbacks.count} of "
                f"{self._failures.rollbacks.watched} rolled the run back: one rollback"
                f"{_needs_tier(tier)} is expected every {mtbf_s:.0f} s, and a save "
                f"{_costs(tier, save_s)}. {bound}A checkpoint interval of {wanted:.0f} s instead "
                f"of {present:.0f} s {'raises' if after > before else 'lowers'} the effective "
                f"training time from {before:.2%} to {after:.2%}"
            ),
            gain_gpu_s=gain * options.period_s * gpus,
        )

    def _rate_per_s(self) -> float:
        """Return the estimated failures per second of the run."""
        options, seen = self._options, self._failures
        prior_node_s = options.prior_failures * _DAY_S / options.prior_failures_per_node_day
        rate = (options.prior_failures + seen.count) / (prior_node_s + seen.node_s)
        return rate * seen.nodes

    def _is_news(self, knob: str, present: float, wanted: float, now_ns: int) -> bool:
        tolerance = math.log1p(self._options.tolerance)
        if wanted <= 0 or _distance(present, wanted) <= tolerance:
            return False
        proposed, proposed_ns = self._proposed.get(knob, (0.0, 0))
        lately = now_ns - proposed_ns < self._options.period_s * 1e9
        return not lately or _distance(proposed, wanted) > tolerance


def _needs_tier(tier: Tier) -> str:
    """Return for which rollbacks a tier is, in words."""
    return "" if tier.share == 1.0 else f" that needs the tier {tier.name} ({tier.share:.1%})"


def _costs(tier: Tier, save_s: float) -> str:
    """Return what a save costs, in words."""
    if tier.save_s is None:
        return f"takes {save_s:g} s"
    return f"delays the run by {save_s:.3g} s, as measured"


def _unmeasured_s(upload_s: float, view: FleetView) -> float:
    """Return what a save costs if it is not measured, with its upload if there is one."""
    return view.costs.checkpoint_s + (upload_s if _UPLOADS in view.knob_specs else 0.0)


def _distance(one: float, other: float) -> float:
    """Return the absolute log ratio of two numbers; inf if one is not above 0."""
    return abs(math.log(one / other)) if one > 0 and other > 0 else math.inf


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(CheckpointIntervalPolicy)
