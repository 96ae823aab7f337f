"""Alarms against incidents: which were right, which were false, and how much time they left."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import TraceError
from torchloom_core.evaluate.forecasts.labels import Incidents, Task
from torchloom_core.plugin.arrays import Floats, Ints

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Judged:
    """What was said of every component at every moment, and what came of it.

    Attributes
    ----------
    times_ns : (times,) int64
        Sorted, about ``every_s`` apart.
    score : (times, components) float64
        NaN where the predictor could not say: such a moment has the lowest score of all, as
        nobody would have acted.
    outcome : (times, components) float64
        1, 0, or NaN where nobody knows; such a moment is not judged.
    incidents : Incidents
        What there was to be told.
    """

    task: Task
    times_ns: Ints
    every_s: float
    score: Floats
    outcome: Floats
    incidents: Incidents

    @property
    def component_days(self) -> float:
        """How long components were judged, days."""
        return float(np.count_nonzero(~np.isnan(self.outcome))) * self.every_s / 86_400.0

    def alarms(self, threshold: float) -> Bools:
        """Return ``(times, components)``: where the score is at or above the threshold."""
        return self.score >= threshold

    def false_alarms(self, alarms: Bools) -> Bools:
        """Return ``(times, components)``: alarms that nothing followed.

        After one that counts, those of the same component within the horizon do not.
        """
        wrong: Bools = alarms & (self.outcome == 0.0)
        counted: Bools = np.zeros_like(wrong)
        free_from_ns = np.full(wrong.shape[1], np.iinfo(np.int64).min)
        for i in np.flatnonzero(wrong.any(axis=1)):
            counted[i] = wrong[i] & (self.times_ns[i] >= free_from_ns)
            free_from_ns[counted[i]] = self.times_ns[i] + self.task.horizon_ns
        return counted


@dataclass(frozen=True, eq=False)
class Told:
    """The incidents that could have been told, and whether and when they were.

    Attributes
    ----------
    incident : (told,) int64
        Which of all incidents.
    last : (told,) int64
        The last of its moments that is judged.
    first_alarm : (told,) int64
        The moment of the first right alarm, -1 without one.
    """

    incident: Ints
    last: Ints
    first_alarm: Ints

    @property
    def found(self) -> Bools:
        """Whether there was a right alarm, ``(told,)``."""
        found: Bools = self.first_alarm >= 0
        return found


def due_moments(judged: Judged) -> Iterator[NDArray[np.intp]]:
    """Yield for every incident the moments at which an alarm would have been right."""
    of = judged.incidents
    for row, start_ns, end_ns in zip(of.row, of.start_ns, of.end_ns, strict=True):
        i, j = np.searchsorted(judged.times_ns, judged.task.due_ns(int(start_ns), int(end_ns)))
        yield np.flatnonzero(judged.outcome[i:j, row] == 1.0) + i


def told(judged: Judged, alarms: Bools) -> Told:
    """Return what became of every incident that has a judged moment."""
    rows: list[tuple[int, int, int]] = []
    for number, (row, due) in enumerate(
        zip(judged.incidents.row, due_moments(judged), strict=True)
    ):
        if len(due):
            right = due[alarms[due, row]]
            rows.append((number, int(due[-1]), int(right[0]) if len(right) else -1))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Told(table[:, 0], table[:, 1], table[:, 2])


def leads_s(judged: Judged, of: Told) -> tuple[float, ...]:
    """Return the seconds from first right alarm to incident, sorted; a detection's are < 0."""
    start_ns = judged.incidents.start_ns[of.incident[of.found]]
    leads_ns = start_ns - judged.times_ns[of.first_alarm[of.found]]
    return tuple(np.sort(leads_ns / SECOND_NS).tolist())


def threshold_for(judged: Judged, false_alarms_per_node_day: float) -> float:
    """Return the lowest score at which false alarms stay within the budget.

    It is set on earlier time than what is scored with it: a rate carries over where a raw score
    drifts. Above every score if even the highest alarms too often.

    Raises
    ------
    TraceError
        If no moment with a score is judged.
    """
    known = ~np.isnan(judged.outcome) & ~np.isnan(judged.score)
    scores = np.unique(judged.score[known])
    if not len(scores):
        raise TraceError("need a judged moment with a score to set a threshold on, was none")
    budget = false_alarms_per_node_day * judged.component_days
    low, high = 0, len(scores)
    while low < high:
        middle = (low + high) // 2
        alarms = judged.alarms(float(scores[middle]))
        if np.count_nonzero(judged.false_alarms(alarms)) <= budget:
            high = middle
        else:
            low = middle + 1
    return float(scores[low]) if low < len(scores) else float(np.nextafter(scores[-1], np.inf))
