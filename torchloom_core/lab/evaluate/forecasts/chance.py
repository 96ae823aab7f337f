"""The recall of alarms by chance: the same alarms at other times or components."""

from collections.abc import Iterator

import numpy as np

from torchloom_core.interface.arrays import Ints
from torchloom_core.lab.evaluate.forecasts.alarms import Bools, Judged, due_moments


def found_by_chance(judged: Judged, alarms: Bools) -> float:
    """Return the mean share of incidents that the same alarms find by chance.

    For a detection, the alarms of each component are shifted circularly through the scored time
    by all offsets, and matched with its incidents. Number, length and component of the alarms stay
    the same; their relation to the time of the incidents is removed. So random alarms have exactly
    their chance recall at any rate, and a permanent alarm has a recall of 1.

    For a forecast, alarms are shifted over all times and all components, since knowing which
    component fails is worth as much as knowing when: each incident is matched with the alarms of
    all components, each shifted through its own scored times.

    Parameters
    ----------
    alarms : (times, components) bool
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
