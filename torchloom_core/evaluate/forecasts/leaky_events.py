"""Find kinds of event that came only to who was to fail, though they were stamped long before.

Somebody who wrote down afterwards what was done about a failure may have dated it as it began.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.relations import APART, FEWEST, above_others
from torchloom_core.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.plugin.arrays import Floats
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.feed.watched import Watched

_EARLY = 2 / 3
"""The share of its time in which is counted how often an event came to a component.

What gets more frequent as a failure comes near is a warning.
"""
_AT_ONCE_NS = 60 * SECOND_NS
"""What is stamped so near to an incident is of the same minute."""


def leaky_kinds(
    events: Sequence[Event],
    watched: Watched,
    task: Task,
    failed_ns: Floats,
    *,
    step_ns: int,
    begin_ns: int,
    end_ns: int,
    known_before: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return a flag for each kind of event, of those that are not to be told, that knows who fails.

    Parameters
    ----------
    failed_ns : (watched,) float64
        When each failed first, NaN of those that never did.
    step_ns : int
        What came no sooner than this before a failure, as what is noted while a component dies,
        is of no use to a forecast.
    begin_ns, end_ns : int
        The span of the trace.
    """
    failed = ~np.isnan(failed_ns)
    before_ns = np.where(failed, failed_ns - step_ns, np.inf)
    early_ns = begin_ns + _EARLY * (np.fmin(before_ns, end_ns) - begin_ns)
    struck: dict[str, Floats] = {}
    often: dict[str, Floats] = {}
    for event in events:
        if task.counts(event) or event.kind in known_before:
            continue
        rows = [*watched.rows_of(event.component)]
        of_kind = struck.setdefault(event.kind, np.zeros(len(watched.ids)))
        of_kind[rows] = np.maximum(of_kind[rows], event.t_avail < before_ns[rows])
        counts = often.setdefault(event.kind, np.zeros(len(watched.ids)))
        counts[rows] += event.t_avail < early_ns[rows]
    flags = []
    twins = _twins(events, watched, task) if task.kind == "detect" else {}
    for kind, of in struck.items():
        why = twins.get(kind)
        if above_others(of[failed], of[~failed]) >= APART:
            why = (
                f"such events came to {of[failed].sum():.0f} of {failed.sum()} components before "
                f"they failed and to {of[~failed].sum():.0f} of {(~failed).sum()} that did not"
            )
        elif (area := above_others(often[kind][failed], often[kind][~failed])) >= APART:
            why = (
                f"how many such events came in the first two thirds of its time tells the "
                f"{failed.sum()} components that failed from the others, area under the ROC curve "
                f"{area:.3f}"
            )
        if why:
            flags.append(f"{LEAKY_COLUMN}: {kind}: {why}")
    return tuple(flags)


def _twins(events: Sequence[Event], watched: Watched, task: Task) -> dict[str, str]:
    """Return the kinds of which each event begins with one that is to be detected, and why."""
    begun_ns: dict[int, list[int]] = {}
    by_kind: dict[str, list[bool]] = {}
    met: dict[str, set[tuple[int, int]]] = {}
    for event in events:
        if task.counts(event):
            for row in watched.rows_of(event.component):
                begun_ns.setdefault(row, []).append(event.t_event)
    starts = {row: np.sort(of) for row, of in begun_ns.items()}
    incidents = sum(map(len, starts.values()))
    for event in events:
        if task.counts(event):
            continue
        near: set[tuple[int, int]] = set()
        for row in watched.rows_of(event.component):
            edges = (event.t_event - _AT_ONCE_NS, event.t_event + _AT_ONCE_NS)
            first, last = np.searchsorted(starts.get(row, ()), edges).tolist()
            near |= {(row, at) for at in range(first, last)}
        by_kind.setdefault(event.kind, []).append(bool(near))
        met.setdefault(event.kind, set()).update(near)
    return {
        kind: f"{sum(near)} of {len(near)} such events began with one that is to be detected, and "
        f"so did {len(met[kind])} of {incidents} of those"
        for kind, near in by_kind.items()
        if sum(near) >= max(FEWEST, APART * len(near)) and len(met[kind]) >= APART * incidents
    }
