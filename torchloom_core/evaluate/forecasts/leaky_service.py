"""Find telemetry that was kept of those that failed alone, so that being new predicts a failure.

Who takes the last weeks of what failed, and all of some that did not, has made an extract in which
whoever comes later fails. A young fleet fails more, too, but what is old fails as well.
"""

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.relations import FEWEST
from torchloom_core.learning.features import AT_ONCE_S
from torchloom_core.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.plugin.arrays import Floats

IN_SERVICE = "time in service"
"""As which it is flagged, and may be declared."""
_TIMES = 10.0
"""So many times as often new ones fail in no fleet."""
_CHANCE = 0.01


def leaky_service(
    began_ns: Floats, ended_ns: Floats, failed_ns: Floats, *, middle_ns: int, tick_ns: int
) -> tuple[str, ...]:
    """Return a flag if those that came later fail, and next to none of those that were there.

    Asked is the second half of the trace: by then an extract has lost those that were there when it
    begins and that failed.

    Parameters
    ----------
    began_ns, ended_ns, failed_ns : (components,) float64
        The first telemetry of each, its last, and when it failed first; NaN where there is none.
    """
    from scipy.special import pdtr

    known = ~np.isnan(began_ns)
    if not known.any():
        return ()
    came_later = began_ns > np.nanmin(began_ns) + max(AT_ONCE_S * SECOND_NS, 1.5 * tick_ns)
    until_ns = np.fmin(ended_ns, failed_ns)
    watched = np.clip(until_ns - np.fmax(began_ns, middle_ns), 0.0, None)
    failed = (failed_ns >= middle_ns) & (failed_ns >= began_ns)
    late, early = known & came_later, known & ~came_later
    failures = int(failed[late].sum()), int(failed[early].sum())
    if failures[0] < FEWEST or watched[late].sum() == 0:
        return ()
    usual = failures[0] / watched[late].sum() / _TIMES
    if pdtr(failures[1], usual * watched[early].sum()) >= _CHANCE:
        return ()
    return (
        f"{LEAKY_COLUMN}: {IN_SERVICE}: {failures[0]} of {late.sum()} components that came later "
        f"failed in the second half, {failures[1]} of {early.sum()} that were there from the start",
    )
