"""What a model was fitted on, as far as it matters to those who score it."""

from torchloom_core.learning.model import Model
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.recording import events_digest, telemetry_digest


def was_fitted_on(model: Model, bundle: Bundle) -> bool:
    """Say whether the bundle has the events or the telemetry that the model learned from.

    On that part of it, it is not to be scored. Names do not count: data that were imported twice
    are the same trace, and two traces of one name are two.
    """
    info = model.info
    events, telemetry = events_digest(bundle, info.until_ns), telemetry_digest(bundle)
    same_events = events != "" and events == info.events_digest
    return same_events or (telemetry != "" and telemetry == info.telemetry_digest)


def other_repair(label: str, model: Model, repair_s: float) -> str:
    """Return by which repair a model is scored if it is not that of the config, "" if it is."""
    own_s = model.info.repair_s
    if own_s == repair_s:
        return ""
    return (
        f"{label}: its model was fitted with {own_s:g} s of repair where nobody knows a failure's "
        f"end, and is scored so; [evaluate] repair_s is {repair_s:g}."
    )
