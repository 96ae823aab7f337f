"""Migrate a replica group that is forecast to fail, if the expected loss exceeds the cost."""

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from torchloom_core.plugin import (
    TRAFFIC_NEEDS,
    UNSAVED_WORK,
    ActedOn,
    Action,
    Alert,
    CordonNode,
    DrainGroup,
    FleetView,
    Migrate,
    Need,
    NeedForecast,
    Outlook,
    Positive,
    Proposal,
    Registry,
    Reserve,
    RunFailures,
    Share,
    Standbys,
    Traffic,
    expected_unsaved_s,
    hookimpl,
    unsaved_work_s,
)
from torchloom_policies.forecast_groups import ForecastGroups, GroupRisk

_INCIDENT_S = 300.0
"""Faults of the run closer than this are one failure."""
_SHOWN_GPU_S = 0.5
"""A cost that rounds to 0 is left out of the reason."""


class FailureForecastPolicy:
    """Propose to migrate each group whose expected loss exceeds the cost of moving it.

    An unavoided failure stalls all GPUs of the run for detection, restart and the unsaved work,
    and costs the group's own GPUs until it is replaced. With ``p`` the group's
    failure probability and ``s`` that of the standby that would replace it, moving it pays if

        (p - s) [(detect + restart + unsaved) x run's GPUs + replace x group's GPUs]
            > migrate x run's GPUs + away

    which is the rule "migrate iff p (D + R + unsaved work) > G" of proactive migration
    (Aupy, Robert, Vivien and Zaidouni, "Checkpointing algorithms and fault prediction", 2014)
    in GPU-seconds, extended by the failure of the standby. A standby worker without a forecast
    counts with the median probability of the run. ``away`` is the cost of one standby less while
    the nodes that the group left are inspected (:class:`~torchloom_core.plugin.Reserve`). It uses
    the failure rate that the forecast gives for the other groups, or the run's observed rate where
    that is higher: a predictor may cover only a few workers. The transfer of the state to the
    standby adds to the cost (:class:`~torchloom_core.plugin.Traffic`); it does not wait for a
    quieter network, because the failure does not wait either.

    Where the trainer reports ``unsaved_work_s``, the unsaved work is its expected mean until the
    end of the forecast; else it is ``costs.unsaved_s``. A group's probability is
    1 - prod(1 - p) over its workers, as if they failed independently.

    Nodes of the group that alone fail with ``min_probability`` are cordoned for the rest of the
    forecast's horizon. The gain of a cordon is the cost of a failure of a group placed there
    meanwhile, and its cost is the missing node; a cordon that does not pay is not proposed.

    A forecast is evaluated at every tick until its horizon has passed, so that a group without a
    standby is moved once there is one. A group on the same nodes is proposed once
    per horizon, unless the odds of its failure have doubled since. A proposal that waits for
    approval is withdrawn when the forecast is over or the failure is no longer likely enough.
    """

    name = "failure_forecast"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.failure_forecast]``."""

        predictor: str = "trend"
        """Predictor whose forecasts to act on; it must be active, under ``[predictors]``."""
        min_probability: Share = 0.1
        """A group less likely to fail than this, 0 to 1, is never moved: protection against false
        alarms. An alert gives both numbers the first time that this limit alone prevents a move."""
        horizon_s: Positive | None = None
        """Act on failures within this time, seconds; the forecast is converted as if the hazard
        were constant. Absent: the predictor's own horizon."""
        drain_without_standby: bool = False
        """If no standby group can take over, drain the group where that pays; otherwise only an
        alert is given."""
        accept_unskilled: bool = False
        """Act also on a fitted model whose model card rates it below useful."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._outlook = Outlook(options.predictor, options.horizon_s)
        self._traffic = Traffic()
        self._failures = RunFailures(_INCIDENT_S)
        self._moved = ActedOn()
        self._alerted = ActedOn()
        self._alerted_minimum = False
        self.needs = (
            Need(UNSAVED_WORK),
            *TRAFFIC_NEEDS,
            NeedForecast(options.predictor, skilled=not options.accept_unskilled),
        )

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Evaluate the newest forecast until its horizon has passed."""
        self._traffic.look(view)
        self._failures.look(view, np.flatnonzero(view.is_in("training", "paused")).tolist())
        worker_probability = self._outlook.probability(view)
        if self._outlook.rest_s == 0.0:
            return
        standbys = Standbys(view)
        groups = ForecastGroups(view, worker_probability)
        at_risk = (groups.probability >= self._options.min_probability) & (groups.probability > 0)
        unsaved_s = self._unsaved_s(view)
        risks = [groups.risk(number, unsaved_s) for number in np.flatnonzero(at_risk).tolist()]
        for risk in sorted(risks, key=lambda risk: (-risk.net_gpu_s, risk.group)):
            if risk.net_gpu_s > 0:
                yield from self._propose(risk, groups, standbys, view)
        below_minimum = np.where(at_risk, 0.0, groups.probability)
        if below_minimum.any() and not self._alerted_minimum:
            likeliest = groups.risk(int(np.argmax(below_minimum)), unsaved_s)
            yield from self._alert_minimum(likeliest, groups, standbys, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Return why the proposal lapsed: the forecast is over, or the failure too unlikely."""
        worker_probability = self._outlook.probability(view)
        if self._outlook.rest_s == 0.0:
            return f"the forecast of {self._options.predictor} is over"
        match proposal.action:
            case Migrate(group=name) | DrainGroup(group=name):
                subject, places = f"group {name}", view.group
            case CordonNode(node=name):
                subject, places = name, view.node
            case _:
                return ""
        rows = [row for row, place in enumerate(places) if place == name]
        probability = ForecastGroups(view, worker_probability).any_fails(rows)
        pays = probability * proposal.gain_gpu_s > proposal.cost_gpu_s
        if probability >= self._options.min_probability and pays:
            return ""
        return (
            f"the probability that {subject} fails within {self._outlook.rest_s:.0f} s is now "
            f"{probability:.2g}, was {proposal.confidence:.2g} in the proposal"
        )

    def _unsaved_s(self, view: FleetView) -> float:
        age_s = unsaved_work_s(view)
        if age_s is None:
            return view.costs.unsaved_s
        return expected_unsaved_s(age_s, 2.0 * view.costs.unsaved_s, self._outlook.rest_s)

    def _propose(
        self, risk: GroupRisk, groups: ForecastGroups, standbys: Standbys, view: FleetView
    ) -> Iterator[Proposal]:
        suspicion = (risk.group, *sorted({view.node[row] for row in risk.rows}))
        news = (suspicion, risk.probability, view.now_ns)
        if not self._moved.is_news(*news):
            return
        reserve, action, cost_gpu_s = self._exit(risk, groups, standbys, view)
        if action is not None:
            if risk.probability * risk.loss_gpu_s <= cost_gpu_s:
                return
            standbys.take(risk.rows)
            size_bytes = self._traffic.state_bytes
            words = self._traffic.in_words("the state", size_bytes)
            transfer = "" if math.isnan(size_bytes) else f"; {words}"
            self._moved.add(*news, self._outlook.rest_s)
            yield Proposal(
                action=action,
                reason=self._reason(risk, cost_gpu_s, view)
                + _absence(risk.gpus, reserve)
                + (transfer if isinstance(action, Migrate) else ""),
                gain_gpu_s=risk.loss_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=risk.probability,
                cause=(self._outlook.id,),
            )
            yield from self._cordon(risk, groups, reserve, view)
        elif not self._options.drain_without_standby and self._alerted.is_news(*news):
            self._alerted.add(*news, self._outlook.rest_s)
            reason = f"{self._reason(risk, cost_gpu_s, view)}; no standby can take over"
            yield self._alert(risk, reason, view)

    def _exit(
        self, risk: GroupRisk, groups: ForecastGroups, standbys: Standbys, view: FleetView
    ) -> tuple[Reserve, Action | None, float]:
        """Return the remaining standbys, the action by which the group leaves, and its cost.

        The cost includes the failure of the standby and the transfer of the state, GPU-seconds.
        """
        standby = standbys.fit(risk.rows)
        others = max(0.0, groups.expected - risk.probability)
        reserve = Reserve(
            view.costs,
            run_gpus=view.costs.gpus_per_worker * groups.in_run,
            failures_per_s=max(others / self._outlook.rest_s, self._failures.per_s),
            left=standbys.left(len(risk.rows)) - 1 if standby else -1,
        )
        cost_gpu_s = reserve.move_gpu_s(risk.gpus)
        if standby:
            cost_gpu_s += groups.standby_probability[standby] * risk.loss_gpu_s
            cost_gpu_s += self._traffic.transfer_gpu_s(self._traffic.state_bytes)
            return reserve, Migrate(group=risk.group), cost_gpu_s
        if self._options.drain_without_standby and risk.probability * risk.loss_gpu_s > cost_gpu_s:
            return reserve, DrainGroup(group=risk.group), cost_gpu_s
        return reserve, None, risk.pause_gpu_s

    def _alert_minimum(
        self, risk: GroupRisk, groups: ForecastGroups, standbys: Standbys, view: FleetView
    ) -> Iterator[Proposal]:
        """Propose an alert if only ``min_probability`` prevents the move of a group."""
        _, _, cost_gpu_s = self._exit(risk, groups, standbys, view)
        if risk.probability * risk.loss_gpu_s <= cost_gpu_s:
            return
        self._alerted_minimum = True
        reason = (
            f"group {risk.group} fails within {self._outlook.rest_s:.0f} s with probability "
            f"{risk.probability:.2g}. A move pays from {cost_gpu_s / risk.loss_gpu_s:.2g} on, but "
            f"min_probability = {self._options.min_probability:g} prevents it, here and for "
            "other groups below it"
        )
        yield self._alert(risk, reason, view)

    def _alert(self, risk: GroupRisk, reason: str, view: FleetView) -> Proposal:
        return Proposal(
            action=Alert(worker=view.workers[risk.worst], text=reason),
            reason=reason,
            confidence=risk.probability,
            cause=(self._outlook.id,),
        )

    def _cordon(
        self, risk: GroupRisk, groups: ForecastGroups, reserve: Reserve, view: FleetView
    ) -> Iterator[Proposal]:
        """Propose to cordon the nodes that are likely to fail, until the forecast ends."""
        rest_s = self._outlook.rest_s
        for node in dict.fromkeys(view.node[row] for row in risk.rows):
            rows = [row for row in risk.rows if view.node[row] == node]
            probability = groups.any_fails(rows)
            is_likely = probability >= self._options.min_probability and probability > 0
            if not node or node in view.cordoned or not is_likely:
                continue
            cost_gpu_s = reserve.away_gpu_s(view.costs.gpus_per_worker * len(rows), rest_s)
            if probability * risk.loss_gpu_s <= cost_gpu_s:
                continue
            price = f", the cordon costs {cost_gpu_s:.0f}" if cost_gpu_s >= _SHOWN_GPU_S else ""
            yield Proposal(
                action=CordonNode(node=node, lasts_s=rest_s),
                reason=(
                    f"group {risk.group} leaves {node}, which fails within {rest_s:.0f} s with "
                    f"probability {probability:.2f}: a failure costs {risk.loss_gpu_s:.0f} "
                    f"GPU-s{price}"
                ),
                gain_gpu_s=risk.loss_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=probability,
                cause=(self._outlook.id,),
            )

    def _reason(self, risk: GroupRisk, cost_gpu_s: float, view: FleetView) -> str:
        worker, node = view.workers[risk.worst], view.node[risk.worst]
        why = self._outlook.why(view, risk.worst)
        return (
            f"group {risk.group} fails within {self._outlook.rest_s:.0f} s with probability "
            f"{risk.probability:.2f}, most likely {worker} on {node or 'an unknown node'}"
            f"{f' ({why})' if why else ''}: a failure costs {risk.loss_gpu_s:.0f} GPU-s, a move "
            f"{cost_gpu_s:.0f}"
        )


def _absence(gpus: float, reserve: Reserve) -> str:
    """Return the part of the cost that is due to nodes under inspection, if it is not 0."""
    away_gpu_s = reserve.inspected_gpu_s(gpus)
    if away_gpu_s < _SHOWN_GPU_S:
        return ""
    left = f", {reserve.left} standbys remain" if reserve.left >= 0 else ""
    return f" ({away_gpu_s:.0f} of it for its nodes under inspection{left})"


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(FailureForecastPolicy)
