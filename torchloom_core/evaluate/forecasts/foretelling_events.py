"""Find kinds of event that came only to who was to fail, though they were stamped long before.

Somebody who wrote down afterwards what was done about a failure may have dated it as it began.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.relations import APART, above_others
from torchloom_core.learning.forecast_score import FORETELLING
from torchloom_core.plugin.arrays import Floats
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.feed.watched import Watched


def foretelling_kinds(
    events: Sequence[Event],
    watched: Watched,
    task: Task,
    failed_ns: Floats,
    *,
    step_ns: int,
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
    """
    failed = ~np.isnan(failed_ns)
    before_ns = np.where(failed, failed_ns - step_ns, np.inf)
    struck: dict[str, Floats] = {}
    for event in events:
        if task.counts(event) or event.kind in known_before:
            continue
        rows = [*watched.rows_of(event.component)]
        of_kind = struck.setdefault(event.kind, np.zeros(len(watched.ids)))
        of_kind[rows] = np.maximum(of_kind[rows], event.t_avail < before_ns[rows])
    areas = {kind: above_others(of[failed], of[~failed]) for kind, of in struck.items()}
    return tuple(
        f"{FORETELLING}: {kind}: such events came to {struck[kind][failed].sum():.0f} of "
        f"{failed.sum()} components before they failed and to {struck[kind][~failed].sum():.0f} of "
        f"{(~failed).sum()} that did not"
        for kind, area in areas.items()
        if area >= APART
    )
