"""Check a trace and a predictor before a fit."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.api import Predictor
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.evaluate.contradictions import refuse_contradicting, warn_beyond_end
from torchloom_core.lab.evaluate.forecasts.component_inputs import GROUP
from torchloom_core.lab.evaluate.forecasts.leaks import IN_SERVICE
from torchloom_core.lab.evaluate.unmeasured import missing, warn_missing
from torchloom_core.lab.fitting.build import METRICS, build, usual_spans_s
from torchloom_core.lab.fitting.feasibility import (
    available_bytes,
    refuse_without_room,
    warn_fine_ticks,
    warn_frequent_forecasts,
    warn_short_spans,
)
from torchloom_core.lab.fitting.time_split import FitSettings
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.checksums import refuse_changed
from torchloom_core.lab.trace.feed.watched import watch


@contextmanager
def checked_trace(bundle: Bundle, settings: FitSettings) -> Iterator[None]:
    """Refuse a trace that changed or leaks the future, and names that it does not have.

    At the end, refuse it if it was replaced meanwhile. Warn of events after its end, and of ticks
    far shorter than its sampling interval. TraceError or LeakError.
    """
    bundle.digest()  # compared again at the end
    refuse_changed(bundle.path, bundle.manifest.files)
    refuse_contradicting(bundle)
    warn_beyond_end(bundle)
    warn_fine_ticks(bundle, settings.tick_s)
    kinds = {event.kind for event in bundle.events()}
    labels = {name for of in watch(bundle).labels.of for name in of}
    for what, names, known in (
        ("kind of its events", settings.kinds, kinds),
        (
            "metric, attribute or kind of event of this trace",
            settings.known_before,
            {*bundle.metrics, *labels, *kinds, GROUP, IN_SERVICE},
        ),
    ):
        for name in names:
            if name not in known:
                raise TraceError(
                    f"{bundle.path}: need a {what}, was {name!r}{nearest(name, known)}"
                )
    yield
    bundle.refuse_replaced()


def check_predictor(
    bundle: Bundle,
    info: PluginInfo,
    options: Mapping[str, Any],
    settings: FitSettings,
    *,
    source: str,
) -> None:
    """Refuse a predictor that does not fit in memory; warn of metrics, pace and spans.

    ``source`` is where the options are from, for errors. ConfigError or PluginError.
    """
    plugin, all_options = build(bundle, info, options, tick_s=settings.tick_s, source=source)
    refuse_without_room(bundle, settings, plugin, available_bytes())
    warn_missing_metrics(bundle, info.name, [plugin])
    warn_frequent_forecasts(bundle, settings, info.name, [plugin])
    spans_s = all_options.get("spans_s", ()) if all_options.get(METRICS) else ()
    warn_short_spans(bundle, info.name, spans_s, usual_spans_s(plugin.horizon_s, settings.tick_s))


def warn_missing_metrics(bundle: Bundle, name: str, plugins: Iterable[Predictor]) -> None:
    """Warn of metrics that a predictor, or its candidates, read and the trace does not have."""
    known = {*bundle.metrics}
    unseen = {metric for plugin in plugins for metric in missing(plugin.needs, known)}
    warn_missing(f"predictor {name}", unseen, known, "the trace")
