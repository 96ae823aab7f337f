"""Find attributes that know the future of a component, though they are said not to change.

Somebody who made a table of components afterwards may have put into it what became of each.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import Bools
from torchloom_core.evaluate.forecasts.fates import Fates, told_by_group, told_by_total
from torchloom_core.evaluate.forecasts.relations import (
    APART,
    apart,
    apart_beside,
    known_beside,
    related,
)
from torchloom_core.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.plugin.arrays import Floats
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import Watched

_AROUND_NS = 20 * 365 * 86_400 * SECOND_NS
"""What lies so near to the time of the trace is a date."""
_BEYOND_SHARE = 0.01
GROUP = "its rack"
"""As which is flagged, and may be declared, what a component hangs on: the nearest above it."""


def leaky_attributes(
    bundle: Bundle,
    watched: Watched,
    names: Sequence[str],
    fates: Fates,
    came_ns: Floats,
    *,
    horizon_ns: int,
) -> tuple[str, ...]:
    """Return a flag for each attribute that knows the future of components, with why.

    Parameters
    ----------
    names : sequence of str
        Labels, or ``GROUP``.
    fates : Fates
        Of the watched components.
    came_ns : (watched,) float64
        When the first telemetry of each came, NaN where none did.
    horizon_ns : int
        A component that was there no more so long before the end of the trace has ended.
    """
    began_ns, ended_ns = _presence(bundle, watched, fates.failed_ns)
    began_ns = np.fmax(began_ns, came_ns)
    ended = ended_ns < bundle.manifest.end_ns - horizon_ns
    found: dict[str, str] = {}
    honest: dict[str, Floats] = {}
    numbers: dict[str, Floats] = {}
    for name in names:
        cells: Sequence[object] = [labels.get(name) for labels in watched.labels.of]
        if name == GROUP:
            cells = watched.rack
        found[name] = told_by_group(cells, fates)
        if found[name] or name == GROUP or name not in watched.labels.numbers:
            continue
        values = np.array(cells, dtype=float)
        found[name] = _number_knows(values, fates, began_ns, ended_ns, ended)
        if not found[name]:
            honest[name] = values[ended]
            numbers[name] = values
    for name in honest:
        found[name] = known_beside(name, honest, began_ns[ended], ended_ns[ended])
    numbers = {name: values for name, values in numbers.items() if not found[name]}
    failed = ~np.isnan(fates.failed_ns)
    for name in numbers:
        found[name] = apart_beside(name, numbers, failed)
    return tuple(f"{LEAKY_COLUMN}: {name}: {why}" for name, why in found.items() if why)


def _number_knows(
    values: Floats, fates: Fates, began_ns: Floats, ended_ns: Floats, ended: Bools
) -> str:
    beyond = values * SECOND_NS > began_ns + 3600.0 * SECOND_NS
    dates = np.abs(values * SECOND_NS - began_ns) < _AROUND_NS
    known = ~np.isnan(values)
    if known.any() and (dates | ~known).all() and beyond[known].mean() >= _BEYOND_SHARE:
        return f"{beyond[known].mean():.0%} of its values are dates after its component was there"
    ended = ended & known
    if found := related(values[ended], began_ns[ended], ended_ns[ended]):
        return (
            f"it tells how long {ended.sum()} components that ended were there, rank correlation "
            f"{found:.2f}"
        )
    if total := told_by_total(values, fates):
        return total
    failed = ~np.isnan(fates.failed_ns)
    return _apart_text(values, failed) or _apart_text(known.astype(float), failed)


def _apart_text(values: Floats, failed: Bools) -> str:
    known = ~np.isnan(values)
    area = apart(values[known & failed], values[known & ~failed])
    if area < APART:
        return ""
    return (
        f"it tells the {(known & failed).sum()} components that failed at any time from the "
        f"others, area under the ROC curve {area:.3f}"
    )


def _presence(bundle: Bundle, watched: Watched, failed_ns: Floats) -> tuple[Floats, Floats]:
    """Return when each component was there first and last, as far as is known."""
    began: Floats = np.full(len(watched.ids), float(bundle.manifest.start_ns))
    ended: Floats = np.full(len(watched.ids), np.nan)
    row_of = {name: row for row, name in enumerate(watched.ids)}
    for part in bundle.topology():
        row = row_of.get(part.id)
        if row is not None:
            began[row] = began[row] if part.from_ns is None else part.from_ns
            ended[row] = np.nan if part.until_ns is None else part.until_ns
    return began, np.fmin(ended, failed_ns)
