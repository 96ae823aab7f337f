"""How often a trace tells something, and whether who looks at it, or is asked, goes by that."""

import logging
from collections.abc import Sequence
from itertools import islice

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.fitting.stages import FitSettings
from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.needs import windows_s
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.telemetry import codes, numbers

_log = logging.getLogger(__name__)

_TIMES = 5
"""Moments of one component from which its interval is told."""
_TABLES = 16
"""Parts of the telemetry that are looked through at the most."""
_A_HORIZON = 12
"""So often a horizon is enough for who reads no telemetry: between faults little changes."""
_OFTEN = 4.0
"""So many times as often takes long, and shows next to nothing more."""


def told_every_s(bundle: Bundle) -> float | None:
    """Return how far apart the first few samples of one component are, seconds; None of few."""
    return bundle.once("told every", _told_every_s)


def _told_every_s(bundle: Bundle) -> float | None:
    component, seen = "", np.zeros(0, dtype=np.int64)
    for table in islice(bundle.telemetry(), _TABLES):
        component = component or table["component"][0].as_py()
        own = codes(table["component"], [component]) == 0
        seen = np.union1d(seen, numbers(table["t_event"])[own])
        if len(seen) >= _TIMES:
            return float(np.median(np.diff(seen[:_TIMES]))) / SECOND_NS
    return None


def say_too_often(bundle: Bundle, tick_s: float) -> None:
    """Say that a trace is looked at far more often than it tells anything."""
    every_s = told_every_s(bundle)
    if every_s is not None and every_s >= _OFTEN * tick_s:
        _log.warning(
            "%s: a sample every %.6g s is looked at every %.6g s: --tick-s %.6g takes a fraction "
            "of the time",
            bundle.path,
            every_s,
            tick_s,
            every_s,
        )


def say_short_spans(
    bundle: Bundle, name: str, spans_s: Sequence[float], usual_s: Sequence[float]
) -> None:
    """Say that a predictor sums metrics up over spans that are all shorter than a sample.

    Parameters
    ----------
    spans_s, usual_s : sequence of float
        Those of the predictor, empty if it reads no telemetry; those that are worth a try.
    """
    every_s = told_every_s(bundle) if spans_s else None
    if every_s is not None and max(spans_s) < every_s:
        _log.warning(
            "%s: predictor %s sums metrics up over %.6g s at the most, and a sample comes every "
            "%.6g s: --option 'spans_s=[%s]' sums up several",
            bundle.path,
            name,
            max(spans_s),
            every_s,
            ", ".join(f"{span_s:.10g}" for span_s in usual_s),
        )


def say_asked_often(
    bundle: Bundle, settings: FitSettings, name: str, plugins: Sequence[Predictor]
) -> None:
    """Say that predictors which read no telemetry of the trace are asked often in a horizon.

    Parameters
    ----------
    plugins : sequence of Predictor
        One, or all of which the one may be chosen.
    """
    if any(windows_s(plugin.needs).keys() & {*bundle.metrics} for plugin in plugins):
        return
    for plugin in plugins:
        every_s, enough_s = settings.pace_s(plugin), plugin.horizon_s / _A_HORIZON
        if enough_s >= _OFTEN * every_s:
            _log.warning(
                "%s: predictor %s reads no telemetry of it, and is asked every %.6g s, %.0f times "
                "a horizon: --every-s %.6g, %d times, takes a fraction of the time",
                bundle.path,
                name,
                every_s,
                plugin.horizon_s / every_s,
                enough_s,
                _A_HORIZON,
            )
            return
