"""Histories of components, by day, for the checks for leaks."""

import numpy as np

from torchloom_core.lab.evaluate.forecasts.component_inputs import History

DAY_NS = 86_400 * 10**9


def history(*, began_d=0.0, ended_d=np.nan, failed_d=np.nan, early=0.0, late=0.0):
    """Return the history of as many components as the longest has; NaN is none."""
    columns = np.broadcast_arrays(began_d, ended_d, failed_d, early, late)
    began, ended, failed, early, late = (np.array(one, dtype=float) for one in columns)
    times = (DAY_NS * days for days in (began, ended, failed))
    return History(*times, early, late, ~np.isnan(ended), ~np.isnan(failed))
