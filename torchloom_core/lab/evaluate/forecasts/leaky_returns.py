"""Find columns that reveal the next failure of components that return and fail again.

A column with the remaining time starts anew with each return. Apart from its time and component, no
honest measurement relates the first value after a return to a failure more than a horizon later.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.labels import Incidents
from torchloom_core.lab.evaluate.forecasts.relations import FEWEST, correlation_within
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers


def leaky_returns(
    bundle: Bundle,
    metrics: Sequence[str],
    components: Sequence[str],
    rows: Sequence[Sequence[int]],
    found: Incidents,
    *,
    horizon_ns: int,
) -> tuple[str, ...]:
    """Return a flag with the reason for each metric that reveals the next failure.

    Parameters
    ----------
    components : sequence of str
        The measured ones.
    rows : sequence of sequence of int
        Rows of the watched components that each of them is, or belongs to.
    found : Incidents
        Incidents of the watched components.
    """
    owner, began_ns, next_ns = _between_failures(found, rows, bundle.manifest.start_ns)
    if len(owner) - len(np.unique(owner)) < FEWEST:
        return ()
    came_ns, first = _firsts(bundle, metrics, components, owner, began_ns)
    flags = []
    for metric, value, at_ns in zip(metrics, first.T, came_ns.T, strict=True):
        far = np.flatnonzero(next_ns - at_ns > horizon_ns)
        correlation = correlation_within(owner[far], value[far], at_ns[far], next_ns[far])
        if correlation:
            flags.append(
                f"{LEAKY_COLUMN}: {metric}: its first value after each of {len(far)} returns "
                f"predicts the time to the next failure, rank correlation {correlation:.2f}"
            )
    return tuple(flags)


def _between_failures(
    found: Incidents, rows: Sequence[Sequence[int]], start_ns: int
) -> tuple[Ints, Ints, Floats]:
    """Return owner, start and end of each time between two failures.

    The first one of a component begins with the trace. They are sorted by component, then time;
    components with a single failure are left out.
    """
    order = np.argsort(found.row)
    row = found.row[order]
    owner: list[Ints] = []
    began: list[Ints] = []
    ended: list[Ints] = []
    for place, own in enumerate(rows):
        spans = [slice(*np.searchsorted(row, [one, one + 1])) for one in own]
        its = np.sort(np.concatenate([order[:0], *(order[span] for span in spans)]))
        if len(its) < 2:
            continue
        failed_ns, back_ns = found.start_ns[its], np.maximum.accumulate(found.end_ns[its])
        owner.append(np.full(len(its), place))
        began.append(np.fmin([start_ns, *back_ns[:-1]], failed_ns))
        ended.append(failed_ns)
    none = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([none, *owner]),
        np.concatenate([none, *began]),
        np.concatenate([none, *ended]).astype(np.float64),
    )


def _firsts(
    bundle: Bundle,
    metrics: Sequence[str],
    components: Sequence[str],
    owner: Ints,
    began_ns: Ints,
) -> tuple[Floats, Floats]:
    """Return time and value of the first sample of each metric in each time span.

    Both are ``(times, metrics)``, NaN without one.
    """
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    stride_s = (end_ns - start_ns) // SECOND_NS + 2
    begins_s = owner * stride_s + (began_ns - start_ns) // SECOND_NS
    first: Floats = np.full((len(owner), len(metrics)), np.nan)
    came_ns = first.copy()
    for table in bundle.telemetry(metrics=metrics):
        row, column = codes(table["component"], components), codes(table["metric"], metrics)
        at_ns, value = numbers(table["t_event"]), numbers(table["value"])
        at_s = np.clip((at_ns - start_ns) // SECOND_NS, 0, stride_s - 2)
        place = np.searchsorted(begins_s, row * stride_s + at_s, side="right") - 1
        valid = numbers(table["valid"]) & np.isfinite(value) & (place >= 0)
        valid[valid] = owner[place[valid]] == row[valid]
        cell = (place * len(metrics) + column)[valid]
        new = np.isnan(first.flat[cell])
        own, at = np.unique(cell[new], return_index=True)
        first.flat[own] = value[valid][new][at]
        came_ns.flat[own] = at_ns[valid][new][at]
    return came_ns, first
