"""Move a replica group off what is about to fail, when the forecast makes that worth its price."""

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
_TOLD_GPU_S = 0.5
"""A price that rounds to nothing is not told."""


class FailureForecastPolicy:
    """Propose to migrate each group whose expected loss exceeds the price of moving it.

    A failure nobody acted on stalls all GPUs of the run for detection, restart and the work not
    yet saved, and costs the group's own GPUs until it is replaced. With ``p`` the group's
    failure probability and ``s`` that of the standby which would take its place, moving it pays if

        (p - s) [(detect + restart + unsaved) x run's GPUs + replace x group's GPUs]
            > migrate x run's GPUs + away

    which is the rule "migrate iff p (D + R + unsaved work) > G" of proactive migration
    (Aupy, Robert, Vivien and Zaidouni, "Checkpointing algorithms and fault prediction", 2014)
    in GPU-seconds, but that the standby may fail as well; a worker of it that was not judged
    yet, because it has come since, is taken for a typical one of the run, the median. ``away`` is
    what it costs that there is one standby less while the nodes that were left are inspected
    (:class:`~torchloom_core.plugin.Reserve`), at the failures that the same forecast expects of
    the other groups, or at those that the run had so far, where they are more often: a rule that
    judges few says nothing of the others. To the price comes what the state that the standby is
    given takes of the network (:class:`~torchloom_core.plugin.Traffic`); the failure will not
    wait for a quieter one.

    Where the trainer reports ``unsaved_work_s``, the unsaved work is what it will be on average
    until the forecast is over; else it is ``costs.unsaved_s``. A group's probability is
    1 - prod(1 - p) over its workers, as if they failed independently.

    The nodes that the group leaves for, those that alone fail with ``min_probability``, are
    cordoned for the rest of the forecast's horizon: after that nothing is known against them. The
    gain of a cordon is what their failure would cost whoever was put there meanwhile, and its
    price that they are away so long; one that is not worth it is left out.

    A forecast is weighed at every tick until its horizon has passed, so that a group for which
    no standby was there is moved once there is one. A group on the same nodes is proposed once
    a horizon, unless the odds of its failure have doubled since. A proposal that waits for
    approval is withdrawn when the forecast is over or the failure no longer likely enough.
    """

    name = "failure_forecast"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.failure_forecast]``.

        Attributes
        ----------
        predictor : str
            Whose forecasts to act on; it must be active, under ``[predictors]``.
        min_probability : float
            A group less likely to fail than this, 0 to 1, is left alone whatever the price: it
            guards against a predictor that cries wolf. The first time that it keeps a group which
            the price alone would move, an alert has both numbers.
        horizon_s : float, optional
            Act on what happens within this time, seconds; the forecast is converted as if the
            hazard were constant. Absent: the predictor's own horizon.
        drain_without_standby : bool
            With no standby group that could take over, let the group leave all the same if
            that pays; otherwise only an alert is given.
        accept_unskilled : bool
            Act also on a fitted model that is not useful by the verdict on its card.
        """

        predictor: str = "trend"
        min_probability: Share = 0.1
        horizon_s: Positive | None = None
        drain_without_standby: bool = False
        accept_unskilled: bool = False

    def __init__(self, options: Options) -> None:
        self._options = options
        self._outlook = Outlook(options.predictor, options.horizon_s)
        self._traffic = Traffic()
        self._failures = RunFailures(_INCIDENT_S)
        self._moved = ActedOn()
        self._alerted = ActedOn()
        self._has_told_of_minimum = False
        self.needs = (
            Need(UNSAVED_WORK),
            *TRAFFIC_NEEDS,
            NeedForecast(options.predictor, skilled=not options.accept_unskilled),
        )

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Weigh what the newest forecast still says."""
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
        kept = np.where(at_risk, 0.0, groups.probability)
        if kept.any() and not self._has_told_of_minimum:
            likeliest = groups.risk(int(np.argmax(kept)), unsaved_s)
            yield from self._tell_of_minimum(likeliest, groups, standbys, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Say that the forecast is over, or that it is no longer likely enough to act on."""
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
            f"{subject} now fails within {self._outlook.rest_s:.0f} s with probability "
            f"{probability:.2g}, was {proposal.confidence:.2g} when it was proposed"
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
        reserve, action, cost_gpu_s = self._way_out(risk, groups, standbys, view)
        if action is not None:
            if risk.probability * risk.loss_gpu_s <= cost_gpu_s:
                return
            standbys.take(risk.rows)
            self._moved.add(*news, self._outlook.rest_s)
            yield Proposal(
                action=action,
                reason=self._reason(risk, cost_gpu_s, view)
                + _absence(risk.gpus, reserve)
                + self._transfer(action),
                gain_gpu_s=risk.loss_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=risk.probability,
                cause=(self._outlook.id,),
            )
            yield from self._cordon(risk, groups, reserve, view)
        elif not self._options.drain_without_standby and self._alerted.is_news(*news):
            self._alerted.add(*news, self._outlook.rest_s)
            reason = f"{self._reason(risk, cost_gpu_s, view)}; no standby can take over"
            yield Proposal(
                action=Alert(worker=view.workers[risk.worst], text=reason),
                reason=reason,
                confidence=risk.probability,
                cause=(self._outlook.id,),
            )

    def _reserve(
        self, risk: GroupRisk, groups: ForecastGroups, left: int, view: FleetView
    ) -> Reserve:
        """Return what is left once the group has left, and how often the others need it."""
        others = max(0.0, groups.expected - risk.probability)
        return Reserve(
            view.costs,
            run_gpus=view.costs.gpus_per_worker * groups.in_run,
            failures_per_s=max(others / self._outlook.rest_s, self._failures.per_s),
            left=left,
        )

    def _way_out(
        self, risk: GroupRisk, groups: ForecastGroups, standbys: Standbys, view: FleetView
    ) -> tuple[Reserve, Action | None, float]:
        """Return how the group should leave, if at all, and what that costs in GPU-seconds.

        A standby may fail as well, and is to be given the state.
        """
        standby = standbys.fit(risk.rows)
        left = standbys.left(len(risk.rows)) - 1 if standby else -1
        reserve = self._reserve(risk, groups, left, view)
        cost_gpu_s = reserve.move_gpu_s(risk.gpus)
        if standby:
            cost_gpu_s += groups.standby_probability[standby] * risk.loss_gpu_s
            cost_gpu_s += self._traffic.transfer_gpu_s(self._traffic.state_bytes)
            return reserve, Migrate(group=risk.group), cost_gpu_s
        if self._options.drain_without_standby and risk.probability * risk.loss_gpu_s > cost_gpu_s:
            return reserve, DrainGroup(group=risk.group), cost_gpu_s
        return reserve, None, risk.pause_gpu_s

    def _tell_of_minimum(
        self, risk: GroupRisk, groups: ForecastGroups, standbys: Standbys, view: FleetView
    ) -> Iterator[Proposal]:
        """Say that ``min_probability`` keeps a group, if the price alone would move it."""
        _, _, cost_gpu_s = self._way_out(risk, groups, standbys, view)
        if risk.probability * risk.loss_gpu_s <= cost_gpu_s:
            return
        self._has_told_of_minimum = True
        reason = (
            f"group {risk.group} fails within {self._outlook.rest_s:.0f} s with probability "
            f"{risk.probability:.2g}, and leaving in time pays from "
            f"{cost_gpu_s / risk.loss_gpu_s:.2g} on: min_probability = "
            f"{self._options.min_probability:g} keeps it, and all like it, where they are"
        )
        yield Proposal(
            action=Alert(worker=view.workers[risk.worst], text=reason),
            reason=reason,
            confidence=risk.probability,
            cause=(self._outlook.id,),
        )

    def _cordon(
        self, risk: GroupRisk, groups: ForecastGroups, reserve: Reserve, view: FleetView
    ) -> Iterator[Proposal]:
        """Keep off the nodes that the group leaves for, as long as the forecast reaches."""
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
            price = f", to do without it {cost_gpu_s:.0f}" if cost_gpu_s >= _TOLD_GPU_S else ""
            yield Proposal(
                action=CordonNode(node=node, lasts_s=rest_s),
                reason=(
                    f"group {risk.group} leaves {node}, which fails within {rest_s:.0f} s with "
                    f"probability {probability:.2f}: that would cost {risk.loss_gpu_s:.0f} "
                    f"GPU-s{price}"
                ),
                gain_gpu_s=risk.loss_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=probability,
                cause=(self._outlook.id,),
            )

    def _transfer(self, action: Action) -> str:
        """Return what the standby's state takes, where somebody said how large it is."""
        size_bytes = self._traffic.state_bytes
        if not isinstance(action, Migrate) or math.isnan(size_bytes):
            return ""
        return f"; {self._traffic.in_words('the state', size_bytes)}"

    def _reason(self, risk: GroupRisk, cost_gpu_s: float, view: FleetView) -> str:
        worker, node = view.workers[risk.worst], view.node[risk.worst]
        why = self._outlook.why(view, risk.worst)
        return (
            f"group {risk.group} fails within {self._outlook.rest_s:.0f} s with probability "
            f"{risk.probability:.2f}, first {worker} on {node or 'an unknown node'}"
            f"{f' ({why})' if why else ''}: that would cost {risk.loss_gpu_s:.0f} GPU-s, leaving "
            f"in time {cost_gpu_s:.0f}"
        )


def _absence(gpus: float, reserve: Reserve) -> str:
    """Return what of the price is for the nodes that are away, where that is worth a word."""
    away_gpu_s = reserve.inspected_gpu_s(gpus)
    if away_gpu_s < _TOLD_GPU_S:
        return ""
    left = f", with {reserve.left} left to stand by" if reserve.left >= 0 else ""
    return f", of that {away_gpu_s:.0f} for its nodes that are away{left}"


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(FailureForecastPolicy)
