"""Set the checkpoint interval by the measured failure rate, and save before a forecast failure."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from torchloom_core.plugin import (
    TRAFFIC_NEEDS,
    UNSAVED_WORK,
    ActedOn,
    ChangeKnob,
    FleetView,
    Need,
    NeedFaults,
    NeedForecast,
    NotNegative,
    Outlook,
    PolicyNeed,
    Positive,
    Proposal,
    Registry,
    RunFailures,
    SaveCheckpoint,
    Traffic,
    daly_s,
    ettr,
    hookimpl,
    unsaved_work_s,
)
from torchloom_policies.number_knobs import numbers, within

_DAY_S = 86_400.0
_UPLOADS = "upload_bytes_per_s"


class CheckpointIntervalPolicy:
    """Propose the interval that maximizes ETTR, and a save when a failure is forecast.

    The run's failure rate has a gamma prior of ``prior_failures`` failures at
    ``prior_failures_per_node_day``; after n failures in E node-seconds of training its posterior
    mean is ``(prior_failures + n) / (prior_failures / prior rate + E)`` (Gelman et al.,
    "Bayesian Data Analysis", 2.6). Only failures that roll the run back need a checkpoint; with
    torchft the other groups usually continue. The share of rollbacks is therefore measured,
    (1 + rollbacks) / (1 + failures watched), the mean of a beta distribution whose prior is one
    rollback (:class:`torchloom_core.plugin.RunFailures`). M, the mean time between rollbacks, is
    1 / (rate x share x nodes that train). A recovery from a local checkpoint counts as a rollback
    too, so the interval is short where local and remote checkpoints are combined. The interval is
    Daly's higher-order optimum for M and ``costs.checkpoint_s``
    (:func:`torchloom_core.plugin.daly_s`), within the knob's range; the gain is the
    difference in :func:`~torchloom_core.plugin.ettr` over ``period_s``. It is proposed if it
    differs by more than ``tolerance`` from the present value and from any proposal within the last
    ``period_s``: the optimum is flat.

    Where a script offers the knob ``upload_bytes_per_s``, checkpoints share the network with the
    steps. A save then costs ``costs.checkpoint_s`` plus the time by which the upload of the state
    delays the run (:class:`~torchloom_core.plugin.Traffic`): the median of the last hour for the
    interval, the present value for an immediate checkpoint.

    With a ``predictor``, a checkpoint is saved at once if

        p x unsaved work x run's GPUs > costs.checkpoint_s x run's GPUs

    where p is the probability that a worker of the run fails before the next regular checkpoint
    (Aupy, Robert, Vivien and Zaidouni, "Checkpointing algorithms and fault prediction", 2014).
    The unsaved work is the trainer's metric ``unsaved_work_s``, or else ``costs.unsaved_s``. A
    forecast leads to one save per horizon, unless its odds have doubled.
    """

    name = "checkpoint_interval"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.checkpoint_interval]``."""

        knob: str = "checkpoint_interval_s"
        """The knob that sets the work between two checkpoints, seconds, for the whole run."""
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
        self._proposed_s = 0.0
        self._proposed_ns = 0
        self._outlook = Outlook(options.predictor)
        self._saved = ActedOn()
        self.needs: Sequence[PolicyNeed] = (NeedFaults(options.memory_s), *TRAFFIC_NEEDS)
        if options.predictor:
            forecast = NeedForecast(options.predictor, skilled=not options.accept_unskilled)
            self.needs = (*self.needs, Need(UNSAVED_WORK), forecast)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Count failures; propose another interval, or a checkpoint at once."""
        self._traffic.look(view)
        training = np.flatnonzero(view.is_in("training", "paused")).tolist()
        self._failures.look(view, training)
        if not training:
            return
        values = numbers(self._options.knob, training, view)
        yield from self._interval(values, len(training), view)
        if self._options.predictor:
            yield from self._save(values, training, view)

    # --- the interval ---

    def _interval(self, values: list[float], workers: int, view: FleetView) -> Iterator[Proposal]:
        options, costs = self._options, view.costs
        if not values:
            return
        save_s = _save_s(self._traffic.usual_delay_s(self._traffic.state_bytes), view)
        rollbacks = self._failures.rollbacks
        mtbf_s = 1.0 / (self._rate_per_s() * rollbacks.share)
        interval_s = daly_s(save_s=save_s, mtbf_s=mtbf_s)
        wanted = within(view.knob_specs[options.knob], interval_s)
        present = max(dict.fromkeys(values), key=lambda value: _distance(value, wanted))
        if not self._is_news(present, wanted, view.now_ns):
            return
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
        if after <= before:
            return
        self._proposed_s, self._proposed_ns = wanted, view.now_ns
        yield Proposal(
            action=ChangeKnob(knob=options.knob, value=wanted),
            reason=(
                f"{self._failures.count} failures in {self._failures.node_s / _DAY_S:.1f} "
                f"node-days, {rollbacks.count} of {rollbacks.watched} rolled the run back: one "
                f"rollback is expected every {mtbf_s:.0f} s, and a save takes {save_s:g} s. A "
                f"checkpoint interval of {wanted:.0f} s instead of {present:.0f} s raises the "
                f"effective training time from {before:.2%} to {after:.2%}"
            ),
            gain_gpu_s=(after - before) * options.period_s * costs.gpus_per_worker * workers,
        )

    def _rate_per_s(self) -> float:
        """Return the estimated failures per second of the run."""
        options, seen = self._options, self._failures
        prior_node_s = options.prior_failures * _DAY_S / options.prior_failures_per_node_day
        rate = (options.prior_failures + seen.count) / (prior_node_s + seen.node_s)
        return rate * seen.nodes

    def _is_news(self, present: float, wanted: float, now_ns: int) -> bool:
        tolerance = math.log1p(self._options.tolerance)
        if wanted <= 0 or _distance(present, wanted) <= tolerance:
            return False
        lately = now_ns - self._proposed_ns < self._options.period_s * 1e9
        return not lately or _distance(self._proposed_s, wanted) > tolerance

    # --- a checkpoint at once ---

    def _save(
        self, values: list[float], training: list[int], view: FleetView
    ) -> Iterator[Proposal]:
        costs = view.costs
        save_s = _save_s(self._traffic.delay_s(self._traffic.state_bytes), view)
        unsaved_s = unsaved_work_s(view)
        if unsaved_s is None:
            unsaved_s = costs.unsaved_s
        interval_s = max(values) if values else 2.0 * costs.unsaved_s
        p = self._outlook.probability(view)
        until_next_s, rest_s = interval_s - unsaved_s, self._outlook.rest_s
        share = until_next_s / rest_s if 0 < until_next_s < rest_s else 1.0
        fresh = [
            row
            for row in training
            if p[row] > 0 and self._saved.is_news(view.workers[row], float(p[row]), view.now_ns)
        ]
        with np.errstate(divide="ignore"):
            any_fails = float(-np.expm1(share * np.log1p(-p[fresh]).sum()))
        if any_fails * unsaved_s <= save_s:
            return
        for row in fresh:
            self._saved.add(view.workers[row], float(p[row]), view.now_ns, rest_s)
        worst = max(fresh, key=lambda row: float(p[row]))
        run_gpus = costs.gpus_per_worker * len(training)
        why = self._outlook.why(view, worst)
        yield Proposal(
            action=SaveCheckpoint(),
            reason=(
                f"the run fails before its next checkpoint with probability {any_fails:.2f}, most "
                f"likely {view.workers[worst]} on {view.node[worst] or 'an unknown node'}"
                f"{f' ({why})' if why else ''}: {unsaved_s:.0f} s of work would be lost, a save "
                f"takes {save_s:g} s"
            ),
            gain_gpu_s=unsaved_s * run_gpus,
            cost_gpu_s=save_s * run_gpus,
            confidence=any_fails,
            cause=(self._outlook.id,),
        )


def _save_s(upload_s: float, view: FleetView) -> float:
    """Return how long a save delays the run, including its upload if there is one."""
    return view.costs.checkpoint_s + (upload_s if _UPLOADS in view.knob_specs else 0.0)


def _distance(one: float, other: float) -> float:
    """Return the absolute log ratio of two numbers; inf if one is not above 0."""
    return abs(math.log(one / other)) if one > 0 and other > 0 else math.inf


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(CheckpointIntervalPolicy)
