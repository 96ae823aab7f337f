"""The training data of a model, for the checks before it is scored."""

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import LeakError
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.learning.forecast_score import TEST_TUNED_THRESHOLD
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.recorded_values import same_recording, same_values


def task_of(model: Model) -> Task:
    """Return the task that a model was fitted for."""
    info = model.info
    return Task(
        horizon_s=info.horizon_s,
        kind=info.task,
        lead_s=info.lead_s,
        kinds=info.kinds,
        repair_s=info.repair_s,
    )


def was_fitted_on(model: Model, bundle: Bundle) -> bool:
    """Return whether the bundle contains the training data of the model.

    The model must not be scored on that part. The content counts, not the name: the same failures
    or most of them, or the same telemetry.
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
    """Return a note if the model's ``repair_s`` differs from the config's, else ""."""
    own_s = model.info.repair_s
    if own_s == repair_s:
        return ""
    return (
        f"{label}: scored with the model's repair_s of {own_s:g} s for failures without a known "
        f"end; [evaluate] repair_s is {repair_s:g}."
    )


def refuse_trained(place: str, fitted_until_ns: int, scored_from_ns: int) -> None:
    """Raise LeakError (``test_tuned_threshold``) if a model is scored on time of its training."""
    if scored_from_ns < fitted_until_ns:
        raise LeakError(
            f"{place}: {TEST_TUNED_THRESHOLD}: need scored time from "
            f"{moment_text(fitted_until_ns)} on, the end of its training, was "
            f"{moment_text(scored_from_ns)}"
        )
