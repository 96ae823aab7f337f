"""What alarms find by chance: as many incidents as they would have found at another time."""

from collections.abc import Iterator

import numpy as np

from torchloom_core.evaluate.forecasts.alarms import Bools, Judged, due_moments


def found_by_chance(judged: Judged, alarms: Bools) -> float:
    """Return the share of incidents that the same alarms find at every other time, on the mean.

    The alarms of each component are moved round the scored time, moment by moment, and held
    against its incidents where these are: how many there are, how long they last and on which
    component stays as it is, and what they know of the time is gone. So alarms at random find
    what chance finds, whatever their rate, and an alarm that never ends finds all of it. The
    more of its alarms are right, the more this is above what alarms that know nothing find.

    Parameters
    ----------
    alarms : (times, components) bool
    """
    shares = list(_shares(judged, alarms))
    return float(np.mean(shares)) if shares else 0.0


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
