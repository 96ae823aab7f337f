"""Find static attributes that reveal the future of a component.

A table of components that was made afterwards may contain what became of each.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.evaluate.forecasts.alarms import Bools
from torchloom_core.lab.evaluate.forecasts.failure_history import (
    FailureHistory,
    leak_by_group,
    leak_by_total,
)
from torchloom_core.lab.evaluate.forecasts.relations import (
    SEPARATED,
    auc_either_way,
    lifetime_correlation,
    lifetime_leak_given,
    separation_given,
)
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import Watched

_AROUND_NS = 20 * 365 * 86_400 * SECOND_NS
"""A value this near to the time of the trace is treated as a date."""
_BEYOND_SHARE = 0.01
GROUP = "its rack"
"""Name, for flags and for ``--known-before``, of the component's parent in the topology."""


def leaky_attributes(
    bundle: Bundle,
    watched: Watched,
    names: Sequence[str],
    history: FailureHistory,
    came_ns: Floats,
    *,
    horizon_ns: int,
) -> tuple[str, ...]:
    """Return a flag with the reason for each leaky attribute.

    Parameters
    ----------
    names : sequence of str
        Labels, or ``GROUP``.
    history : FailureHistory
        Of the watched components.
    came_ns : (watched,) float64
        Time of the first telemetry, NaN without any.
    horizon_ns : int
        A component that is absent this long before the end of the trace has ended.
    """
    began_ns, ended_ns = _presence(bundle, watched, history.failed_ns)
    began_ns = np.fmax(began_ns, came_ns)
    ended = ended_ns < bundle.manifest.end_ns - horizon_ns
    found: dict[str, str] = {}
    unflagged: dict[str, Floats] = {}
    numbers: dict[str, Floats] = {}
    for name in names:
        cells: Sequence[object] = [labels.get(name) for labels in watched.labels.of]
        if name == GROUP:
            cells = watched.rack
        found[name] = leak_by_group(cells, history)
        if found[name] or name == GROUP or name not in watched.labels.numbers:
            continue
        values = np.array(cells, dtype=float)
        found[name] = _number_leak(values, history, began_ns, ended_ns, ended)
        if not found[name]:
            unflagged[name] = values[ended]
            numbers[name] = values
    for name in unflagged:
        found[name] = lifetime_leak_given(name, unflagged, began_ns[ended], ended_ns[ended])
    numbers = {name: values for name, values in numbers.items() if not found[name]}
    failed = ~np.isnan(history.failed_ns)
    for name in numbers:
        found[name] = separation_given(name, numbers, failed)
    return tuple(f"{LEAKY_COLUMN}: {name}: {why}" for name, why in found.items() if why)


def _number_leak(
    values: Floats, history: FailureHistory, began_ns: Floats, ended_ns: Floats, ended: Bools
) -> str:
    beyond = values * SECOND_NS > began_ns + 3600.0 * SECOND_NS
    dates = np.abs(values * SECOND_NS - began_ns) < _AROUND_NS
    valid = ~np.isnan(values)
    if valid.any() and (dates | ~valid).all() and beyond[valid].mean() >= _BEYOND_SHARE:
        return f"{beyond[valid].mean():.0%} of its values are dates after the component's start"
    ended = ended & valid
    if found := lifetime_correlation(values[ended], began_ns[ended], ended_ns[ended]):
        return f"it predicts the lifetime of {ended.sum()} components, rank correlation {found:.2f}"
    if total := leak_by_total(values, history):
        return total
    failed = ~np.isnan(history.failed_ns)
    return _separation_text(values, failed) or _separation_text(valid.astype(float), failed)


def _separation_text(values: Floats, failed: Bools) -> str:
    valid = ~np.isnan(values)
    area = auc_either_way(values[valid & failed], values[valid & ~failed])
    if area < SEPARATED:
        return ""
    return (
        f"it separates the {(valid & failed).sum()} components that failed at any time from the "
        f"others, ROC AUC {area:.3f}"
    )


def _presence(bundle: Bundle, watched: Watched, failed_ns: Floats) -> tuple[Floats, Floats]:
    """Return the known first and last time of each component."""
    began: Floats = np.full(len(watched.ids), float(bundle.manifest.start_ns))
    ended: Floats = np.full(len(watched.ids), np.nan)
    row_of = {name: row for row, name in enumerate(watched.ids)}
    for part in bundle.topology():
        row = row_of.get(part.id)
        if row is not None:
            began[row] = began[row] if part.from_ns is None else part.from_ns
            ended[row] = np.nan if part.until_ns is None else part.until_ns
    return began, np.fmin(ended, failed_ns)
