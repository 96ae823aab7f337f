"""Find attributes that know the future of a component, though they are said not to change.

Somebody who made a table of components afterwards may have put into it what became of each.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import Bools
from torchloom_core.evaluate.forecasts.foretelling_columns import (
    APART,
    FEWEST,
    RELATED,
    apart,
    known_beside,
    related,
)
from torchloom_core.learning.forecast_score import FORETELLING
from torchloom_core.plugin.arrays import Floats
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import Watched

_AROUND_NS = 20 * 365 * 86_400 * SECOND_NS
"""What lies so near to the time of the trace is a date."""
_BEYOND_SHARE = 0.01


def foretelling_attributes(
    bundle: Bundle,
    watched: Watched,
    names: Sequence[str],
    failed_ns: Mapping[int, int],
    *,
    horizon_ns: int,
) -> tuple[str, ...]:
    """Return a flag for each attribute that knows the future of components, with why.

    Parameters
    ----------
    failed_ns : mapping of int to int
        Watched row to when it failed first, of those that did.
    horizon_ns : int
        A component that was there no more so long before the end of the trace has ended.
    """
    failed = np.isin(np.arange(len(watched.ids)), list(failed_ns))
    began_ns, ended_ns = _presence(bundle, watched, failed_ns)
    ended = ended_ns < bundle.manifest.end_ns - horizon_ns
    found: dict[str, str] = {}
    honest: dict[str, Floats] = {}
    for name in names:
        cells = [labels.get(name) for labels in watched.labels.of]
        if name not in watched.labels.numbers:
            found[name] = _apart_text(_rate_of_word(cells, failed), failed)
            continue
        values = np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
        found[name] = _number_knows(values, failed, began_ns, ended_ns, ended)
        if not found[name]:
            honest[name] = values[ended]
    for name in honest:
        found[name] = known_beside(name, honest, began_ns[ended], ended_ns[ended])
    return tuple(f"{FORETELLING}: {name}: {why}" for name, why in found.items() if why)


def _number_knows(
    values: Floats, failed: Bools, began_ns: Floats, ended_ns: Floats, ended: Bools
) -> str:
    with np.errstate(invalid="ignore"):
        beyond = values * SECOND_NS > began_ns + 3600.0 * SECOND_NS
    dates = np.abs(values * SECOND_NS - began_ns) < _AROUND_NS
    known = ~np.isnan(values)
    if known.any() and (dates | ~known).all() and beyond[known].mean() >= _BEYOND_SHARE:
        return f"{beyond[known].mean():.0%} of its values are dates after its component was there"
    ended = ended & known
    found = related(values[ended], began_ns[ended], ended_ns[ended])
    if found >= RELATED:
        return (
            f"it tells how long {ended.sum()} components that ended were there, rank correlation "
            f"{found:.2f}"
        )
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


def _rate_of_word(cells: Sequence[object], failed: Bools) -> Floats:
    """Return the share of those with the same cell that failed, NaN where they are few."""
    number = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
    code = np.array([number[cell] for cell in cells], dtype=np.intp)
    members = np.bincount(code, minlength=1)[code]
    failures = np.bincount(code, failed, minlength=1)[code]
    return np.where(members >= FEWEST, failures / members, np.nan)


def _presence(
    bundle: Bundle, watched: Watched, failed_ns: Mapping[int, int]
) -> tuple[Floats, Floats]:
    """Return when each component was there first and last, as far as is known."""
    began: Floats = np.full(len(watched.ids), float(bundle.manifest.start_ns))
    ended: Floats = np.full(len(watched.ids), np.nan)
    row_of = {name: row for row, name in enumerate(watched.ids)}
    for part in bundle.topology():
        row = row_of.get(part.id)
        if row is not None:
            began[row] = began[row] if part.from_ns is None else part.from_ns
            ended[row] = np.nan if part.until_ns is None else part.until_ns
    for row, ns in failed_ns.items():
        ended[row] = np.fmin(ended[row], ns)
    return began, ended
