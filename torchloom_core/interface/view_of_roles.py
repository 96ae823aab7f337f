"""The part of a view that has the workers of some roles, for policies that judge those alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, frozen
from torchloom_core.interface.view_parts import LighthouseRows, Metrics
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.messages import KnobSpec

_T = TypeVar("_T")


class MetricsOf:
    """The telemetry of some rows of a view."""

    def __init__(self, metrics: Metrics, rows: NDArray[np.intp]) -> None:
        self._metrics = metrics
        self._rows = rows

    def latest(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, NaN where missing or stale."""
        return frozen(self._metrics.latest(metric)[self._rows])

    def window(self, metric: str, seconds: float) -> Floats:
        """Return ``(workers, samples)``, oldest first, NaN where missing."""
        return frozen(self._metrics.window(metric, seconds)[self._rows])

    def age_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the last valid sample, inf without one."""
        return frozen(self._metrics.age_s(metric)[self._rows])

    def last_known(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, however old, NaN without one."""
        return frozen(self._metrics.last_known(metric)[self._rows])

    def moved_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value first changed, NaN if it never did."""
        return frozen(self._metrics.moved_s(metric)[self._rows])

    def rested_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds from the first sample to the first change, or NaN."""
        return frozen(self._metrics.rested_s(metric)[self._rows])

    def changed_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value last changed, NaN if it never did."""
        return frozen(self._metrics.changed_s(metric)[self._rows])


def lighthouse_of(seen: LighthouseRows | None, rows: NDArray[np.intp]) -> LighthouseRows | None:
    """Return a lighthouse's report of some rows."""
    if seen is None:
        return None
    quorum_id, waiting_s, *columns = seen
    return LighthouseRows(quorum_id, waiting_s, *(column[rows] for column in columns))


def by_row(of: Mapping[int, _T], rows: NDArray[np.intp]) -> dict[int, _T]:
    """Return what some rows have, by their numbers among these rows."""
    return {new: of[row] for new, row in enumerate(rows.tolist()) if row in of}


def forecast_of(forecast: Forecast | None, workers: Sequence[str]) -> Forecast | None:
    """Return the part of a forecast that is about some workers."""
    if forecast is None:
        return None
    hazard = {one: forecast.hazard[one] for one in workers if one in forecast.hazard}
    why = {one: forecast.why[one] for one in hazard if one in forecast.why}
    return replace(forecast, hazard=hazard, why=why)


def specs_of(
    of_role: Mapping[str, Mapping[str, KnobSpec]], roles: Iterable[str]
) -> dict[str, KnobSpec]:
    """Return the knobs of some roles, by name; the first one that has a name counts."""
    specs: dict[str, KnobSpec] = {}
    for role in dict.fromkeys(roles):
        specs = {**of_role.get(role, {}), **specs}
    return specs
