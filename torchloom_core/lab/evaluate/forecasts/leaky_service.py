"""Find traces in which a late start alone predicts a failure.

An extract with only the last weeks of failed components, and all of some healthy ones, has failures
almost only among components that start late. A real young fleet fails more, but old parts fail too.
"""

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.evaluate.forecasts.relations import FEWEST
from torchloom_core.lab.learning.features import AT_ONCE_S
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN

IN_SERVICE = "time in service"
"""Name, for flags and for ``--known-before``."""
_TIMES = 10.0
"""Ratio of the failure rates of late and early components that no real fleet reaches."""
_CHANCE = 0.01


def leaky_service(
    began_ns: Floats, ended_ns: Floats, failed_ns: Floats, *, middle_ns: int, tick_ns: int
) -> tuple[str, ...]:
    """Return a flag if components that start late fail, and the others hardly ever.

    Only the second half of the trace counts: by then an extract has no failed components left that
    were present at its start.

    Parameters
    ----------
    began_ns, ended_ns, failed_ns : (components,) float64
        Times of the first telemetry, the last, and the first failure; NaN without one.
    """
    from scipy.special import pdtr

    valid = ~np.isnan(began_ns)
    if not valid.any():
        return ()
    came_later = began_ns > np.nanmin(began_ns) + max(AT_ONCE_S * SECOND_NS, 1.5 * tick_ns)
    until_ns = np.fmin(ended_ns, failed_ns)
    watched = np.clip(until_ns - np.fmax(began_ns, middle_ns), 0.0, None)
    failed = (failed_ns >= middle_ns) & (failed_ns >= began_ns)
    late, early = valid & came_later, valid & ~came_later
    failures = int(failed[late].sum()), int(failed[early].sum())
    if failures[0] < FEWEST or watched[late].sum() == 0:
        return ()
    usual = failures[0] / watched[late].sum() / _TIMES
    if pdtr(failures[1], usual * watched[early].sum()) >= _CHANCE:
        return ()
    return (
        f"{LEAKY_COLUMN}: {IN_SERVICE}: {failures[0]} of {late.sum()} components that start "
        f"later failed in the second half, {failures[1]} of {early.sum()} present from the start",
    )
