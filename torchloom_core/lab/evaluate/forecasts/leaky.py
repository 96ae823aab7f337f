"""Find leaky inputs of a predictor: columns and events that reveal later failures.

The checks use the whole trace, as no model is fitted here. A fit and a replay call them.
"""

from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.needs import (
    NeedFaults,
    NeedPast,
    PredictorNeed,
    labels_read,
    windows_s,
)
from torchloom_core.lab.evaluate.forecasts.failure_history import failure_history_of
from torchloom_core.lab.evaluate.forecasts.labels import Task, incidents
from torchloom_core.lab.evaluate.forecasts.leaky_attributes import GROUP, leaky_attributes
from torchloom_core.lab.evaluate.forecasts.leaky_columns import leaky_columns, summarize_telemetry
from torchloom_core.lab.evaluate.forecasts.leaky_events import leaky_kinds
from torchloom_core.lab.evaluate.forecasts.leaky_returns import leaky_returns
from torchloom_core.lab.evaluate.forecasts.leaky_service import IN_SERVICE, leaky_service
from torchloom_core.lab.learning.skill import leaky_names
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch


def find_leaky_inputs(
    bundle: Bundle,
    needs: Sequence[PredictorNeed],
    task: Task,
    *,
    tick_s: float,
    every_s: float,
    known_before: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return a flag with name and reason for each leaky input that a predictor reads.

    Parameters
    ----------
    tick_s, every_s : float
        Seconds between samples, and between forecasts.
    known_before : sequence of str
        Inputs to skip: metrics, attributes, kinds of event, ``GROUP`` and ``IN_SERVICE``.
    """
    manifest, watched, horizon_ns = bundle.manifest, watch(bundle), task.horizon_ns
    middle_ns = (manifest.start_ns + manifest.end_ns) // 2
    found = incidents(bundle.events(), watched, task, known_until_ns=manifest.end_ns)
    history = failure_history_of(found, len(watched.ids), middle_ns)
    flags: tuple[str, ...] = ()
    names = labels_read(needs)
    if any(isinstance(need, NeedFaults) for need in needs):
        names = (*names, GROUP)
        flags = leaky_kinds(
            bundle.events(),
            watched,
            task,
            history.failed_ns,
            step_ns=round(every_s * SECOND_NS),
            begin_ns=manifest.start_ns,
            end_ns=manifest.end_ns,
            known_before=known_before,
        )
    metrics = [metric for metric in windows_s(needs) if metric not in known_before]
    components = [one for one in bundle.measured if watched.rows_of(one)] if metrics else []
    rows = [watched.rows_of(one) for one in components]
    summary, measured = summarize_telemetry(bundle, metrics, components), history.of(rows)
    came_ns: Floats = np.full(len(watched.ids), np.nan)
    for own, began_ns in zip(rows, summary.began_ns.tolist(), strict=True):
        came_ns[[*own]] = np.fmin(came_ns[[*own]], began_ns)
    attributes = [name for name in names if name not in known_before]
    columns = leaky_columns(
        summary, metrics, measured, end_ns=manifest.end_ns, horizon_ns=horizon_ns
    )
    rest = [metric for metric in metrics if metric not in leaky_names(columns)]
    columns += leaky_returns(bundle, rest, components, rows, found, horizon_ns=horizon_ns)
    flags = (
        leaky_attributes(bundle, watched, attributes, history, came_ns, horizon_ns=horizon_ns)
        + flags
        + columns
    )
    if IN_SERVICE in known_before or not any(isinstance(need, NeedPast) for need in needs):
        return flags
    return flags + leaky_service(
        summary.began_ns,
        summary.ended_ns,
        measured.failed_ns,
        middle_ns=middle_ns,
        tick_ns=round(tick_s * SECOND_NS),
    )
