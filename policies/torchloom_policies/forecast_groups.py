"""Failure probabilities per replica group, from those of its workers; for ``failure_forecast``."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import FleetView, Floats


@dataclass(frozen=True)
class GroupRisk:
    """A group that may fail, the cost of its failure, and the cost of the pause for a move."""

    group: str
    rows: tuple[int, ...]
    worst: int
    probability: float
    gpus: float
    loss_gpu_s: float
    pause_gpu_s: float

    @property
    def net_gpu_s(self) -> float:
        """The gain of a move, less the cost of the pause alone."""
        return self.probability * self.loss_gpu_s - self.pause_gpu_s


class ForecastGroups:
    """The replica groups that train or stand by, and how likely each is to fail.

    ``expected`` is the expected number of failures among those that train.
    """

    def __init__(self, view: FleetView, worker_probability: Floats) -> None:
        self._view = view
        training = view.is_in("training", "paused")
        number: dict[str, int] = {}
        names = (number.setdefault(group, len(number)) for group in view.group)
        number_of = np.where(training, np.fromiter(names, np.intp, len(view)), -1)
        self._rows = np.argsort(number_of, kind="stable")  # grouped, ascending within a group
        self._begin = np.searchsorted(number_of[self._rows], np.arange(len(number) + 1))
        self.worker_probability = np.where(training, np.nan_to_num(worker_probability), 0.0)
        self.in_run = int(np.count_nonzero(training))
        with np.errstate(divide="ignore"):
            log_survival = np.bincount(
                number_of[training],
                np.log1p(-self.worker_probability[training]),
                minlength=len(number),
            )
        self.probability: Floats = -np.expm1(log_survival)
        self.expected = float(self.probability.sum())
        typical = np.median(self.worker_probability[training]) if self.in_run else 0.0
        expected = np.where(np.isnan(worker_probability), typical, worker_probability)
        survival: dict[str, float] = {}
        for row in np.flatnonzero(view.is_in("standby")).tolist():
            group = view.group[row]
            survival[group] = survival.get(group, 1.0) * (1.0 - float(expected[row]))
        self.standby_probability = {group: 1.0 - alive for group, alive in survival.items()}

    def risk(self, number: int, unsaved_s: float) -> GroupRisk:
        """Return the cost of a group's failure with ``unsaved_s`` seconds of unsaved work."""
        view, costs, rows = self._view, self._view.costs, self.members(number)
        run_gpus, gpus = (costs.gpus_per_worker * count for count in (self.in_run, len(rows)))
        stall_s = costs.detect_s + costs.restart_s + unsaved_s
        return GroupRisk(
            group=view.group[rows[0]],
            rows=tuple(rows.tolist()),
            worst=int(rows[np.argmax(self.worker_probability[rows])]),
            probability=float(self.probability[number]),
            gpus=gpus,
            loss_gpu_s=stall_s * run_gpus + costs.replace_s * gpus,
            pause_gpu_s=costs.migrate_s * run_gpus,
        )

    def any_fails(self, rows: list[int]) -> float:
        """Return the probability that a worker in one of these rows fails."""
        with np.errstate(divide="ignore"):
            # Not `-np.expm1`, which is -0 where none can fail.
            return float(0.0 - np.expm1(np.log1p(-self.worker_probability[rows]).sum()))

    def members(self, number: int) -> NDArray[np.intp]:
        """Return the rows of the group's workers that train."""
        return self._rows[self._begin[number] : self._begin[number + 1]]
