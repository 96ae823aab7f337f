"""Whether a model was fitted on a trace: on that part of it, it is not to be scored."""

from torchloom_core.learning.model import Model
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.recording import events_digest, telemetry_digest


def was_fitted_on(model: Model, bundle: Bundle) -> bool:
    """Say whether the bundle has the events or the telemetry that the model learned from.

    Names do not count: data that were imported twice are the same trace, and two traces of one
    name are two.
    """
    info = model.info
    events, telemetry = events_digest(bundle, info.until_ns), telemetry_digest(bundle)
    same_events = events != "" and events == info.events_digest
    return same_events or (telemetry != "" and telemetry == info.telemetry_digest)
