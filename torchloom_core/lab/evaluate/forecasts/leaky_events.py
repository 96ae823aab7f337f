"""Find kinds of event that occur only on components that fail later.

A log written after a failure may date its entries back to the start of the failure, or before.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.relations import FEWEST, SEPARATED, auc
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.feed.watched import Watched

_EARLY = 2 / 3
"""Share of a component's time in which its events are counted.

Events that become more frequent near a failure are an honest warning.
"""
_AT_ONCE_NS = 60 * SECOND_NS
"""An event this near to the start of an incident coincides with it."""


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
    """Return a flag with the reason for each leaky kind of event, targets excluded.

    Parameters
    ----------
    failed_ns : (watched,) float64
        Time of the first failure, NaN without one.
    step_ns : int
        Events less than this before a failure are ignored, as they are too late for a
        forecast.
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
        if auc(of[failed], of[~failed]) >= SEPARATED:
            why = (
                f"such events occurred on {of[failed].sum():.0f} of {failed.sum()} components "
                f"before they failed and on {of[~failed].sum():.0f} of {(~failed).sum()} others"
            )
        elif (area := auc(often[kind][failed], often[kind][~failed])) >= SEPARATED:
            why = (
                f"their number in the first two thirds of a component's time separates the "
                f"{failed.sum()} components that failed from the others, ROC AUC {area:.3f}"
            )
        if why:
            flags.append(f"{LEAKY_COLUMN}: {kind}: {why}")
    return tuple(flags)


def _twins(events: Sequence[Event], watched: Watched, task: Task) -> dict[str, str]:
    """Return the kinds whose events coincide with incidents to detect, with the reason."""
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
        kind: f"{sum(near)} of {len(near)} such events coincide with the start of an incident to "
        f"detect, and {len(met[kind])} of {incidents} such incidents have one"
        for kind, near in by_kind.items()
        if sum(near) >= max(FEWEST, SEPARATED * len(near))
        and len(met[kind]) >= SEPARATED * incidents
    }
