"""What alarms find by chance: as many incidents as they would have found elsewhere."""

from collections.abc import Iterator

import numpy as np

from torchloom_core.evaluate.forecasts.alarms import Bools, Judged, due_moments
from torchloom_core.plugin.arrays import Ints


def found_by_chance(judged: Judged, alarms: Bools) -> float:
    """Return the share of incidents that the same alarms find by chance, on the mean.

    Of a detection: at every other time. The alarms of each component are moved round the scored
    time, moment by moment, and held against its incidents where these are: how many there are,
    how long they last and on which component stays as it is, and what they know of the time is
    gone. So alarms at random find what chance finds, whatever their rate, and an alarm that
    never ends finds all of it. The more of its alarms are right, the more this is above what
    alarms that know nothing find.

    Of a forecast: at every other time of every component, as to know who will fail is worth as
    much as to know when. The alarms of all components, each moved round its own judged moments,
    are held against each incident in turn.

    Parameters
    ----------
    alarms : (times, components) bool
    """
    if judged.task.kind == "forecast":
        return _anywhere(judged, alarms)
    shares = list(_shares(judged, alarms))
    return float(np.mean(shares)) if shares else 0.0


def _anywhere(judged: Judged, alarms: Bools) -> float:
    """Return the mean over incidents of the share of all places that have an alarm in time."""
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
    """Yield for every incident that could be told the share of places in time that find it."""
    heard: Bools = alarms & ~np.isnan(judged.outcome)
    times = len(judged.times_ns)
    for row, due in zip(judged.incidents.row, due_moments(judged), strict=True):
        if len(due):
            length = int(due[-1] - due[0]) + 1
            yield 1.0 - _quiet(np.flatnonzero(heard[:, row]), times, length) / times


def _quiet(at: "np.ndarray[tuple[int], np.dtype[np.intp]]", times: int, length: int) -> int:
    """Return how many stretches of ``length`` moments, of all round the time, have no alarm."""
    if not len(at):
        return times
    gaps = np.diff(at, append=at[0] + times) - 1
    return int(np.maximum(gaps - length + 1, 0).sum())
