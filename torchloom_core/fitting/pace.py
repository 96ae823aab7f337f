"""How often a trace tells something, and whether it is looked at much more often."""

import logging
from itertools import islice

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.telemetry import codes, numbers

_log = logging.getLogger(__name__)

_TIMES = 5
"""Moments of one component from which its interval is told."""
_TABLES = 16
"""Parts of the telemetry that are looked through at the most."""
_OFTEN = 4.0
"""So many times as often as something is told takes long, and shows nothing more."""


def told_every_s(bundle: Bundle) -> float | None:
    """Return how far apart the first few samples of one component are, seconds; None of few."""
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
