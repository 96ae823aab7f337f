"""Warn of ticks, spans and forecast intervals that do not suit the trace's sampling interval."""

import logging
from collections.abc import Sequence
from itertools import islice

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.fitting.stages import FitSettings
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers

_log = logging.getLogger(__name__)

_TIMES = 5
"""Samples of one component from which the interval is computed."""
_TABLES = 16
"""Parts of the telemetry that are read for that, at most."""
_A_HORIZON = 12
"""Forecasts per horizon that are enough without telemetry: little changes between faults."""
_OFTEN = 4.0
"""From this factor on, a shorter interval is a waste of time."""


def sample_interval_s(bundle: Bundle) -> float | None:
    """Return the interval of the first samples of one component, seconds; None if too few."""
    return bundle.once("sample interval", _sample_interval_s)


def _sample_interval_s(bundle: Bundle) -> float | None:
    component, seen = "", np.zeros(0, dtype=np.int64)
    for table in islice(bundle.telemetry(), _TABLES):
        component = component or table["component"][0].as_py()
        own = codes(table["component"], [component]) == 0
        seen = np.union1d(seen, numbers(table["t_event"])[own])
        if len(seen) >= _TIMES:
            return float(np.median(np.diff(seen[:_TIMES]))) / SECOND_NS
    return None


def warn_fine_ticks(bundle: Bundle, tick_s: float) -> None:
    """Warn of ticks that are far shorter than the sampling interval."""
    every_s = sample_interval_s(bundle)
    if every_s is not None and every_s >= _OFTEN * tick_s:
        _log.warning(
            "%s: samples come every %.6g s, ticks every %.6g s: --tick-s %.6g takes a fraction of "
            "the time",
            bundle.path,
            every_s,
            tick_s,
            every_s,
        )


def warn_short_spans(
    bundle: Bundle, name: str, spans_s: Sequence[float], usual_s: Sequence[float]
) -> None:
    """Warn of a predictor whose spans are all shorter than the sampling interval.

    Parameters
    ----------
    spans_s, usual_s : sequence of float
        Those of the predictor, empty if it reads no telemetry; those to recommend.
    """
    every_s = sample_interval_s(bundle) if spans_s else None
    if every_s is not None and max(spans_s) < every_s:
        _log.warning(
            "%s: predictor %s aggregates metrics over at most %.6g s, but samples come every "
            "%.6g s: use --option 'spans_s=[%s]'",
            bundle.path,
            name,
            max(spans_s),
            every_s,
            ", ".join(f"{span_s:.10g}" for span_s in usual_s),
        )


def warn_frequent_forecasts(
    bundle: Bundle, settings: FitSettings, name: str, plugins: Sequence[Predictor]
) -> None:
    """Warn of many forecasts per horizon by predictors that read no telemetry of the trace.

    Parameters
    ----------
    plugins : sequence of Predictor
        The predictor, or all candidates.
    """
    if any(windows_s(plugin.needs).keys() & {*bundle.metrics} for plugin in plugins):
        return
    for plugin in plugins:
        every_s, enough_s = settings.pace_s(plugin), plugin.horizon_s / _A_HORIZON
        if enough_s >= _OFTEN * every_s:
            _log.warning(
                "%s: predictor %s reads no telemetry, but forecasts every %.6g s, %.0f times per "
                "horizon: --every-s %.6g, %d times per horizon, takes a fraction of the time",
                bundle.path,
                name,
                every_s,
                plugin.horizon_s / every_s,
                enough_s,
                _A_HORIZON,
            )
            return
