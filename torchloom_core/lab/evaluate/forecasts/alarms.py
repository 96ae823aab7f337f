"""Match alarms with incidents: true and false alarms, and lead times."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.labels import Incidents, Task
from torchloom_core.lab.learning.forecast_score import POINT_ADJUSTED, TEST_TUNED_THRESHOLD
from torchloom_core.lab.learning.ranking import precision_and_recall

Bools = NDArray[np.bool_]

_MIN_LEVELS = 50
_MIN_COVERED, _MIN_MOMENTS, _EXACT_SHARE = 3, 3, 0.5


@dataclass(frozen=True, eq=False)
class Judged:
    """Forecasts of every component at every time, with their outcomes.

    ``times_ns`` are sorted, about ``every_s`` apart. ``score`` and ``outcome`` are ``(times,
    components)``. A NaN score, where the predictor gave no forecast, ranks below all others, as no
    policy would have acted. An outcome is 1, 0, or NaN where unknown, which is not scored.
    """

    task: Task
    times_ns: Ints
    every_s: float
    score: Floats
    outcome: Floats
    incidents: Incidents

    @property
    def component_days(self) -> float:
        """Scored time, summed over components, days."""
        return float(np.count_nonzero(~np.isnan(self.outcome))) * self.every_s / 86_400.0

    def alarms(self, threshold: float) -> Bools:
        """Return ``(times, components)``: where the score is at or above the threshold."""
        return self.score >= threshold

    def false_alarms(self, alarms: Bools) -> Bools:
        """Return ``(times, components)``: alarms without a following incident.

        After one that counts, further ones of the same component within the horizon do not.
        """
        wrong: Bools = alarms & (self.outcome == 0.0)
        counted: Bools = np.zeros_like(wrong)
        free_from_ns = np.full(wrong.shape[1], np.iinfo(np.int64).min)
        for i in np.flatnonzero(wrong.any(axis=1)):
            counted[i] = wrong[i] & (self.times_ns[i] >= free_from_ns)
            free_from_ns[counted[i]] = self.times_ns[i] + self.task.horizon_ns
        return counted


@dataclass(frozen=True, eq=False)
class ScoredIncidents:
    """The incidents with a scored sample, and the first true alarm of each.

    All are ``(scored,)``: index into all incidents, index of the last scored time, and index of the
    time of the first true alarm, -1 without one.
    """

    incident: Ints
    last: Ints
    first_alarm: Ints

    @property
    def found(self) -> Bools:
        """Whether there was a true alarm, ``(scored,)``."""
        found: Bools = self.first_alarm >= 0
        return found


def due_moments(judged: Judged) -> Iterator[NDArray[np.intp]]:
    """Yield for every incident the indices of times at which an alarm is true."""
    of = judged.incidents
    for row, start_ns, end_ns in zip(of.row, of.start_ns, of.end_ns, strict=True):
        i, j = np.searchsorted(judged.times_ns, judged.task.due_ns(int(start_ns), int(end_ns)))
        yield np.flatnonzero(judged.outcome[i:j, row] == 1.0) + i


def scored_incidents(judged: Judged, alarms: Bools) -> ScoredIncidents:
    """Return the incidents that have a scored sample."""
    rows: list[tuple[int, int, int]] = []
    for number, (row, due) in enumerate(
        zip(judged.incidents.row, due_moments(judged), strict=True)
    ):
        if len(due):
            right = due[alarms[due, row]]
            rows.append((number, int(due[-1]), int(right[0]) if len(right) else -1))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return ScoredIncidents(table[:, 0], table[:, 1], table[:, 2])


def leads_s(judged: Judged, of: ScoredIncidents) -> tuple[float, ...]:
    """Return the seconds from first true alarm to incident, sorted; < 0 for a detection."""
    start_ns = judged.incidents.start_ns[of.incident[of.found]]
    leads_ns = start_ns - judged.times_ns[of.first_alarm[of.found]]
    return tuple(np.sort(leads_ns / SECOND_NS).tolist())


def threshold_for(judged: Judged, false_alarms_per_node_day: float) -> float:
    """Return the lowest score at which false alarms stay within the budget.

    Set it on earlier time than is scored: an alarm rate carries over better than a raw score. It is
    above every score if even the highest gives too many false alarms. TraceError if no sample has
    both a score and an outcome.
    """
    valid = ~np.isnan(judged.outcome) & ~np.isnan(judged.score)
    scores = np.unique(judged.score[valid])
    if not len(scores):
        raise TraceError("need a forecast with a known outcome to set a threshold on, was none")
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


def flags_of(judged: Judged, alarms: Bools) -> tuple[str, ...]:
    """Return the flags of external alarms."""
    tuned = (TEST_TUNED_THRESHOLD,) * is_tuned(judged, alarms)
    return tuned + (POINT_ADJUSTED,) * is_point_adjusted(judged, alarms)


def is_tuned(judged: Judged, alarms: Bools) -> bool:
    """Return whether the alarms use exactly the threshold that is best on the scored samples.

    The best F1 is computed over samples, and with point adjustment, as both are usual.
    """
    valid = ~np.isnan(judged.outcome) & ~np.isnan(judged.score)
    positive, alarm = judged.outcome[valid] == 1.0, alarms[valid]
    if not alarm.any() or alarm.all() or not positive.any():
        return False
    adjusted = judged.score.copy()
    for due, row in zip(due_moments(judged), judged.incidents.row, strict=True):
        adjusted[due, row] = np.fmax.reduce(judged.score[due, row], initial=-np.inf)
    scores = judged.score[valid]
    highest_quiet, lowest_alarm = scores[~alarm].max(), scores[alarm].min()
    if len(np.unique(scores)) < _MIN_LEVELS:
        return False
    return any(
        highest_quiet < _best_threshold(positive, ranked) <= lowest_alarm
        for ranked in (scores, adjusted[valid])
    )


def _best_threshold(positive: Bools, score: Floats) -> float:
    precision, recall, threshold = precision_and_recall(score, positive)
    both = np.maximum(precision + recall, np.finfo(np.float64).tiny)
    best: Floats = precision * recall / both
    return float(threshold[np.argmax(best)])


def is_point_adjusted(judged: Judged, alarms: Bools) -> bool:
    """Return whether alarms cover every incident that they touch, mostly exactly.

    Honest alarms do not know the bounds of a label. Alarms that match both bounds in half of all
    cases, and never end within an incident, were made from the labels.
    """
    covered = exact = 0
    for due, row in zip(due_moments(judged), judged.incidents.row, strict=True):
        alarm = alarms[due, row]
        if len(alarm) < _MIN_MOMENTS or not alarm.any():
            continue
        if not alarm.all():
            return False
        covered += 1
        edges = [i for i in (due[0] - 1, due[-1] + 1) if 0 <= i < len(alarms)]
        exact += not alarms[edges, row].any()
    return covered >= _MIN_COVERED and exact >= _EXACT_SHARE * covered


def found_by_chance(judged: Judged, alarms: Bools) -> float:
    """Return the mean share of incidents that the same alarms find by chance.

    For a detection, the alarms of each component are shifted circularly through the scored time by
    all offsets, and matched with its incidents. Number, length and component of the alarms stay the
    same; their relation to the time of the incidents is removed. So random alarms have exactly
    their chance recall at any rate, and a permanent alarm has a recall of 1.

    For a forecast, alarms are shifted over all times and all components, since knowing which
    component fails is worth as much as knowing when: each incident is matched with the alarms of
    all components, each shifted through its own scored times.
    """
    if judged.task.kind == "forecast":
        return _anywhere(judged, alarms)
    shares = list(_shares(judged, alarms))
    return float(np.mean(shares)) if shares else 0.0


def _anywhere(judged: Judged, alarms: Bools) -> float:
    """Return the mean over incidents of the share of all shifts with an alarm in time."""
    is_judged: Bools = ~np.isnan(judged.outcome)
    due = np.array([len(one) for one in due_moments(judged)], dtype=np.int64)
    lengths, often = np.unique(due[due > 0], return_counts=True)
    if not len(lengths):
        return 0.0
    places = 0
    gaps: list[Ints] = []
    alarmed = (alarms & is_judged).any(axis=0)
    for column in np.flatnonzero(alarmed):
        own = is_judged[:, column]
        places += int(np.count_nonzero(own))
        at = np.flatnonzero(alarms[own, column])
        gaps.append(np.diff(at, append=at[0] + np.count_nonzero(own)) - 1)
    between = np.concatenate(gaps) if gaps else np.zeros(0, dtype=np.int64)
    quiet = np.array([np.maximum(between - length + 1, 0).sum() for length in lengths])
    found = (places - quiet) / np.count_nonzero(is_judged)
    return float(np.average(found, weights=often))


def _shares(judged: Judged, alarms: Bools) -> Iterator[float]:
    """Yield for every scored incident the share of shifts in time that find it."""
    scored: Bools = alarms & ~np.isnan(judged.outcome)
    times = len(judged.times_ns)
    for row, due in zip(judged.incidents.row, due_moments(judged), strict=True):
        if len(due):
            length = int(due[-1] - due[0]) + 1
            yield 1.0 - _quiet(np.flatnonzero(scored[:, row]), times, length) / times


def _quiet(at: "np.ndarray[tuple[int], np.dtype[np.intp]]", times: int, length: int) -> int:
    """Return how many circular windows of ``length`` times have no alarm."""
    if not len(at):
        return times
    gaps = np.diff(at, append=at[0] + times) - 1
    return int(np.maximum(gaps - length + 1, 0).sum())
