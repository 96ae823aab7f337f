"""Reduce the batch of a straggler, and migrate its group if that does not help."""

import math
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import (
    Alert,
    ChangeKnob,
    DrainGroup,
    FleetView,
    Floats,
    Ints,
    Migrate,
    Need,
    Positive,
    Proposal,
    Registry,
    Reserve,
    RunFailures,
    Share,
    Standbys,
    grow,
    hookimpl,
)

Rows = NDArray[np.bool_]

_OWN = "compute_s"
_WHOLE = "step_time_s"
_WORTH_IT = 0.05
"""Smallest relative change of a batch share."""
_INCIDENT_S = 300.0
"""Faults of the run closer than this are one failure."""


class StragglerPolicy:
    """Propose a smaller batch for a worker that is slow ``patience`` samples in a row, then a move.

    Ranks that wait for each other all report the same step time. The policy therefore compares
    each worker's own computing time, ``compute_s``, where it is reported, as under
    torchft; else ``step_time_s``. All GPUs wait for the slowest worker for (slow - median) / slow
    of their time; that share over ``payback_s`` is the gain.

    A worker that offers the knob ``knob``, its share of the full batch from 0 to 1, first has its
    share multiplied by median / slow, at most ``tries`` times before the group is moved. The share
    grows again once the worker could keep pace with more for ``patience`` samples. A worker that
    stays slow is proposed again after another ``patience`` samples.

    The only group of a run without standbys, as under torchrun, cannot be moved: an alert names the
    worker, once until it has kept pace for ``patience`` samples.

    A move costs the pause, and one standby less (:class:`~torchloom_core.plugin.Reserve`) at the
    run's observed failure rate.
    """

    name = "straggler"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.straggler]``."""

        metric: str | None = None
        """Time to compare, seconds. Absent: ``compute_s`` where at least ``min_workers`` report it,
        else ``step_time_s``."""
        ratio: Annotated[float, msgspec.Meta(gt=1, le=1e6)] = 1.5
        """Slow means more than this many times the median of the training workers."""
        patience: Annotated[int, msgspec.Meta(ge=1)] = 5
        """Slow samples in a row, at most one a tick, before anything is proposed."""
        knob: str = "batch_share"
        """The worker-fenced knob that scales a worker's batch, 1 for all of it; empty: groups are
        moved at once."""
        tries: Annotated[int, msgspec.Meta(ge=1)] = 2
        """How often the batch is made smaller before a worker that stays slow is moved."""
        drain_without_standby: bool = False
        """Where no standby fits the group, drain it instead of proposing a migration."""
        payback_s: Positive = 600.0
        """How long the worker would stay slow without the change, seconds."""
        confidence: Share = 0.8
        """Probability that the change helps, 0 to 1."""
        min_workers: Annotated[int, msgspec.Meta(ge=2)] = 3
        """Minimum number of training workers with a fresh sample."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = RunFailures(_INCIDENT_S)
        self._slow = _Streak()
        self._spare = _Streak()
        self._in_pace: Ints = np.zeros(0, dtype=np.int64)
        self._tried: Ints = np.zeros(0, dtype=np.int64)
        self._alerted: Rows = np.zeros(0, dtype=np.bool_)
        self._metrics = (options.metric,) if options.metric else (_OWN, _WHOLE)
        self.needs = tuple(map(Need, self._metrics))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Count slow samples per worker; propose at the ``patience``-th."""
        options = self._options
        training = view.is_in("training")
        self._failures.look(view, np.flatnonzero(training).tolist())
        metric, time_s = self._times(view, training)
        arrived = ~np.isnan(view.window(metric, view.tick_s)[:, -1])
        tried = grow(self._tried, len(view))
        self._tried = np.where(training, tried, 0)
        in_pace = grow(self._in_pace, len(view))
        if np.count_nonzero(~np.isnan(time_s)) < options.min_workers:
            self._slow, self._spare = _Streak(), _Streak()
            self._in_pace = in_pace
            return
        share = self._shares(view)
        with np.errstate(over="ignore", invalid="ignore"):
            median_s = float(np.nanmedian(time_s))
            possible = np.minimum(1.0, share * median_s / time_s)
        slow = time_s > options.ratio * median_s
        self._in_pace = np.where(slow, 0, in_pace + arrived)
        stays_slow = training & (self._in_pace < options.patience)
        self._alerted = grow(self._alerted, len(view)) & stays_slow
        ripe = self._slow.count(slow, training, arrived, options.patience)
        spare = possible >= np.minimum(1.0, share * (1.0 + _WORTH_IT))
        able = self._spare.count(spare, training, arrived, options.patience)
        self._tried[(share >= 1.0) & ~slow] = 0
        yield from self._give_back(able, possible, share, view)
        yield from self._relieve(ripe, time_s, median_s, share, view)

    def lapsed(self, view: FleetView, proposal: Proposal) -> str:
        """Return why the move lapsed: the group has kept pace for ``patience`` samples."""
        match proposal.action:
            case Migrate(group=group) | DrainGroup(group=group):
                _, time_s = self._times(view, view.is_in("training"))
            case _:
                return ""
        rows = np.flatnonzero([name == group for name in view.group] & np.isfinite(time_s))
        if not rows.size:
            return f"no step times of group {group} are known"
        patience = self._options.patience
        if (grow(self._in_pace, len(view))[rows] < patience).any():
            return ""
        return (
            f"group {group} has kept pace for {patience} samples: it takes "
            f"{time_s[rows].max():.3g} s a step, the median is {np.nanmedian(time_s):.3g} s"
        )

    def _times(self, view: FleetView, training: Rows) -> tuple[str, Floats]:
        """Return the metric that is compared and its ``(workers,)`` values, NaN if not usable."""
        for metric in self._metrics:
            latest_s = view.latest(metric)
            usable = training & np.isfinite(latest_s) & (latest_s > 0)
            if np.count_nonzero(usable) >= self._options.min_workers:
                break
        return metric, np.where(usable, latest_s, np.nan)

    def _shares(self, view: FleetView) -> Floats:
        """Return each worker's share of the full batch, ``(workers,)``, NaN without the knob."""
        spec = view.knob_specs.get(self._options.knob)
        if spec is None or spec.fence != "worker" or spec.kind != "float":
            return np.full(len(view), np.nan)
        values = view.knob(self._options.knob)
        return np.asarray(
            [value if isinstance(value, float) and 0 < value <= 1 else np.nan for value in values]
        )

    def _relieve(
        self, ripe: Rows, time_s: Floats, median_s: float, share: Floats, view: FleetView
    ) -> Iterator[Proposal]:
        """Propose the next step for each slow worker; a group is moved once, for the slowest."""
        gpus = view.costs.gpus_per_worker * int(np.count_nonzero(view.is_in("training")))
        moved: set[str] = set()
        standbys = Standbys(view)
        members: dict[str, list[int]] = {}
        for row, group in enumerate(view.group if ripe.any() else ()):
            members.setdefault(group, []).append(row)
        rows = np.flatnonzero(ripe)
        for row in rows[np.argsort(-time_s[rows], kind="stable")].tolist():
            waiting = 1.0 - median_s / time_s[row]
            reason = (
                f"{view.workers[row]} on {view.node[row] or 'an unknown node'} takes "
                f"{time_s[row]:.3g} s a step for {self._options.patience} samples, the median "
                f"is {median_s:.3g} s: {waiting:.0%} of {gpus:g} GPUs' time is waiting"
            )
            gain_gpu_s = float(waiting * gpus * self._options.payback_s)
            less = self._less(view, float(share[row] * median_s / time_s[row]))
            if self._tried[row] < self._options.tries and less <= share[row] * (1.0 - _WORTH_IT):
                self._tried[row] += 1
                reason += (
                    f"; with {less:.2g} of its batch instead of {share[row]:.2g} it keeps pace"
                )
                # Samples that the slow worker drops are not trained elsewhere.
                dropped = share[row] - less
                undone = dropped * view.costs.gpus_per_worker * self._options.payback_s
                yield self._resize(view.workers[row], less, reason, gain_gpu_s, undone)
            elif self._is_stuck(members[view.group[row]], standbys, view):
                yield from self._alert(row, reason, view)
            elif view.group[row] not in moved:
                moved.add(view.group[row])
                rows_of_group = members[view.group[row]]
                yield self._move(view, rows_of_group, reason, gain_gpu_s, gpus, standbys)

    def _less(self, view: FleetView, share: float) -> float:
        """Return the share that the knob takes: two digits, and not below what it allows."""
        spec = view.knob_specs.get(self._options.knob)
        if spec is None or math.isnan(share):
            return math.inf
        return max(math.floor(share * 100) / 100, spec.low or 0.01)

    def _give_back(
        self, able: Rows, possible: Floats, share: Floats, view: FleetView
    ) -> Iterator[Proposal]:
        for row in np.flatnonzero(able).tolist():
            more = math.floor(possible[row] * 100) / 100
            if more <= share[row]:
                continue
            gained = (more - share[row]) * view.costs.gpus_per_worker * self._options.payback_s
            reason = (
                f"{view.workers[row]} keeps pace with {share[row]:.2g} of its batch and could "
                f"take {more:.2g}"
            )
            yield self._resize(view.workers[row], more, reason, gained)

    def _resize(
        self, worker: str, share: float, reason: str, gain_gpu_s: float, cost_gpu_s: float = 0.0
    ) -> Proposal:
        return Proposal(
            action=ChangeKnob(knob=self._options.knob, value=share, worker=worker),
            reason=reason,
            gain_gpu_s=float(gain_gpu_s),
            cost_gpu_s=float(cost_gpu_s),
            confidence=self._options.confidence,
        )

    def _is_stuck(self, members: list[int], standbys: Standbys, view: FleetView) -> bool:
        """Return whether this is the run's only group, and nothing can take its place."""
        training = np.flatnonzero(view.is_in("training")).tolist()
        is_only = {view.group[row] for row in training} == {view.group[members[0]]}
        can_leave = standbys.fit(members) or self._options.drain_without_standby
        return is_only and not can_leave

    def _alert(self, row: int, reason: str, view: FleetView) -> Iterator[Proposal]:
        if self._alerted[row]:
            return
        self._alerted[row] = True
        yield Proposal(
            action=Alert(worker=view.workers[row], text=reason),
            reason=reason,
            confidence=self._options.confidence,
        )

    def _move(
        self,
        view: FleetView,
        members: list[int],
        reason: str,
        gain_gpu_s: float,
        gpus: float,
        standbys: Standbys,
    ) -> Proposal:
        action: Migrate | DrainGroup = Migrate(group=view.group[members[0]])
        left = 0
        if standbys.take(members):
            left = standbys.left(len(members))
        elif self._options.drain_without_standby:
            action = DrainGroup(group=view.group[members[0]])
            left = -1
        reserve = Reserve(view.costs, run_gpus=gpus, failures_per_s=self._failures.per_s, left=left)
        return Proposal(
            action=action,
            reason=reason,
            gain_gpu_s=gain_gpu_s,
            cost_gpu_s=reserve.move_gpu_s(view.costs.gpus_per_worker * len(members)),
            confidence=self._options.confidence,
        )


class _Streak:
    """Counts, per worker, consecutive samples that meet a condition."""

    def __init__(self) -> None:
        self._count: Ints = np.zeros(0, dtype=np.int64)

    def count(self, holds: Rows, counted: Rows, arrived: Rows, enough: int) -> Rows:
        """Return the rows that met it ``enough`` times, and reset their count."""
        streak = np.where(counted, grow(self._count, len(holds)), 0)
        self._count = np.where(arrived, np.where(holds, streak + 1, 0), streak)
        ripe = self._count >= enough
        self._count = np.where(ripe, 0, self._count)
        return np.asarray(ripe)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(StragglerPolicy)
