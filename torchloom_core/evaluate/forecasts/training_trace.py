"""What a model was fitted on, as far as it matters to those who score it."""

from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.learning.model import Model
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.recorded_values import same_values
from torchloom_core.trace.bundle.recording import same_recording


def task_of(model: Model) -> Task:
    """Return what a model was fitted to tell."""
    info = model.info
    return Task(
        horizon_s=info.horizon_s,
        kind=info.task,
        lead_s=info.lead_s,
        kinds=info.kinds,
        repair_s=info.repair_s,
    )


def was_fitted_on(model: Model, bundle: Bundle) -> bool:
    """Say whether the bundle is of the time and the fleet that the model learned from.

    On that part of it, it is not to be scored. It has the same failures, or most of them, or the
    same telemetry. Names do not count: data that were imported twice are the same trace, and two
    traces of one name are two.
    """
    info, task = model.info, task_of(model)
    due = [
        event
        for event in bundle.events()
        if task.counts(event)
        and event.t_event >= model.card.fitted_from_ns
        and event.t_avail < info.until_ns
    ]
    return same_recording(info.event_prints, bundle.events(), due) or same_values(
        info.values, bundle, info.until_ns
    )


def other_repair(label: str, model: Model, repair_s: float) -> str:
    """Return by which repair a model is scored if it is not that of the config, "" if it is."""
    own_s = model.info.repair_s
    if own_s == repair_s:
        return ""
    return (
        f"{label}: its model was fitted with {own_s:g} s of repair where nobody knows a failure's "
        f"end, and is scored so; [evaluate] repair_s is {repair_s:g}."
    )
