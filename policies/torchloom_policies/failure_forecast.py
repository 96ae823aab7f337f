"""Move a replica group off what is about to fail, when the forecast makes that worth its price."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import (
    Action,
    Alert,
    DrainGroup,
    FleetView,
    Floats,
    Forecast,
    Migrate,
    Positive,
    Proposal,
    Registry,
    Share,
    hookimpl,
)


class FailureForecastPolicy:
    """Propose to migrate each group whose expected loss exceeds the price of moving it.

    A failure nobody acted on stalls all GPUs of the run for detection, restart and the work not
    yet saved, and costs the group's own GPUs until it is replaced. With ``p`` the group's
    failure probability, moving it pays if

        p [(detect + restart + unsaved) x run's GPUs + replace x group's GPUs]
            > migrate x run's GPUs

    which is the rule "migrate iff p (D + R + unsaved work) > G" of proactive migration
    (Aupy, Robert, Vivien and Zaidouni, "Checkpointing algorithms and fault prediction", 2014)
    in GPU-seconds. A group's probability is 1 - prod(1 - p) over its workers, as if they failed
    independently. Each forecast is acted on once.
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
            guards against a predictor that cries wolf.
        horizon_s : float, optional
            Act on what happens within this time, seconds; the forecast is converted as if the
            hazard were constant. Absent: the predictor's own horizon.
        drain_without_standby : bool
            With no stand-by group that could take over, let the group leave all the same if
            that pays; otherwise only an alert is given.
        """

        predictor: str = "trend"
        min_probability: Share = 0.1
        horizon_s: Positive | None = None
        drain_without_standby: bool = False

    def __init__(self, options: Options) -> None:
        self._options = options
        self._seen = ""
        self.needs = ()
        self.predictors = (options.predictor,)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the newest forecast, if it is one not seen before."""
        forecast = view.forecast(self._options.predictor)
        if forecast is None or forecast.id == self._seen:
            return
        self._seen = forecast.id
        groups = _Groups(view, self._worker_probability(view, forecast))
        at_risk = (groups.probability >= self._options.min_probability) & (groups.probability > 0)
        for group in np.flatnonzero(at_risk).tolist():
            yield from self._price(group, groups, view, forecast)

    def _worker_probability(self, view: FleetView, forecast: Forecast) -> Floats:
        p = view.hazard(self._options.predictor)
        horizon_s = self._options.horizon_s
        if horizon_s is None or forecast.horizon_s <= 0:
            return p
        return 1.0 - (1.0 - p) ** (horizon_s / forecast.horizon_s)

    def _price(
        self, number: int, groups: "_Groups", view: FleetView, forecast: Forecast
    ) -> Iterator[Proposal]:
        costs = view.costs
        rows = groups.members(number)
        group = view.group[rows[0]]
        p = float(groups.probability[number])
        run_gpus = costs.gpus_per_worker * groups.in_run
        group_gpus = costs.gpus_per_worker * len(rows)
        away_gpu_s = costs.replace_s * group_gpus
        loss_gpu_s = (costs.detect_s + costs.restart_s + costs.unsaved_s) * run_gpus + away_gpu_s
        price_gpu_s = costs.migrate_s * run_gpus
        standby = groups.has_standby(view, rows)
        if not standby and self._options.drain_without_standby:
            price_gpu_s += away_gpu_s
        if p * loss_gpu_s <= price_gpu_s:
            return
        worst = int(rows[np.argmax(groups.worker_probability[rows])])
        reason = self._reason(worst, p, loss_gpu_s, price_gpu_s, view, forecast)
        action: Action
        if standby:
            action = Migrate(group=group)
        elif self._options.drain_without_standby:
            action = DrainGroup(group=group)
        else:
            reason += "; no stand-by can take over"
            action = Alert(worker=view.workers[worst], text=reason)
            loss_gpu_s = price_gpu_s = 0.0
        yield Proposal(
            action=action,
            reason=reason,
            gain_gpu_s=loss_gpu_s,
            cost_gpu_s=price_gpu_s,
            confidence=p,
            cause=(forecast.id,),
        )

    def _reason(
        self, row: int, p: float, loss: float, price: float, view: FleetView, forecast: Forecast
    ) -> str:
        worker = view.workers[row]
        horizon_s = self._options.horizon_s or forecast.horizon_s
        why = forecast.why.get(worker, "")
        return (
            f"group {view.group[row]} fails within {horizon_s:g} s with probability {p:.2f}, "
            f"first {worker} on {view.node[row] or 'an unknown node'}{f' ({why})' if why else ''}: "
            f"that would cost {loss:.0f} GPU-s, leaving in time {price:.0f}"
        )


class _Groups:
    """The replica groups that train, how likely each is to fail, and what stands by."""

    def __init__(self, view: FleetView, worker_probability: Floats) -> None:
        training = view.is_in("training", "paused")
        number: dict[str, int] = {}
        names = (number.setdefault(group, len(number)) for group in view.group)
        self._number_of = np.where(training, np.fromiter(names, np.intp, len(view)), -1)
        self.worker_probability = np.where(training, np.nan_to_num(worker_probability), 0.0)
        self.in_run = int(np.count_nonzero(training))
        with np.errstate(divide="ignore"):
            log_survival = np.bincount(
                self._number_of[training],
                np.log1p(-self.worker_probability[training]),
                minlength=len(number),
            )
        self.probability: Floats = -np.expm1(log_survival)
        self._standby: dict[str, list[str]] = {}
        for row in np.flatnonzero(view.is_in("standby")).tolist():
            self._standby.setdefault(view.group[row], []).append(view.node[row])

    def members(self, number: int) -> NDArray[np.intp]:
        """Return the rows of the group's workers that train."""
        return np.flatnonzero(self._number_of == number)

    def has_standby(self, view: FleetView, rows: NDArray[np.intp]) -> bool:
        """Say whether a stand-by group as large waits on other nodes."""
        nodes = {view.node[row] for row in rows.tolist()}
        return any(
            len(waiting) == len(rows) and nodes.isdisjoint(waiting)
            for waiting in self._standby.values()
        )


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(FailureForecastPolicy)
