"""Helpers for policies that act on forecasts; public, like :mod:`torchloom_core.plugin`."""

from collections.abc import Hashable, Iterable

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.checkpoint_tiers import PATH, TIERS

UNSAVED_WORK = TIERS[PATH].unsaved
"""The metric of a trainer's work since its last checkpoint, seconds."""

_CERTAIN = 1.0 - 1e-12


class Outlook:
    """One predictor's newest forecast, for the rest of its horizon.

    A forecast covers ``horizon_s`` from when it was made; with a constant hazard rate, the
    probability ``p`` for that time becomes ``1 - (1 - p)^(rest / horizon)`` for the rest of it.
    Afterwards it is NaN, until the next forecast.

    Parameters
    ----------
    predictor : str
        The name of the predictor.
    horizon_s : float, optional
        The horizon to use, seconds; default: that of the forecast.

    Attributes
    ----------
    id : str
        The newest forecast's id, empty before the first.
    rest_s : float
        The rest of its horizon, seconds.

    Examples
    --------
    >>> from torchloom_core.plugin import Forecast, Outlook
    >>> from torchloom_core.testing import view_of
    >>> forecast = Forecast(id="f1", predictor="trend", horizon_s=600.0, hazard={"w0": 0.75})
    >>> outlook = Outlook("trend")
    >>> outlook.probability(view_of(workers=2, now_s=1000.0, forecasts=[forecast]))
    array([0.75,  nan])
    >>> outlook.probability(view_of(workers=2, now_s=1300.0, forecasts=[forecast]))
    array([0.5, nan])
    >>> outlook.rest_s
    300.0
    """

    def __init__(self, predictor: str, horizon_s: float | None = None) -> None:
        self._predictor = predictor
        self._horizon_s = horizon_s
        self._since_ns = 0
        self.id = ""
        self.rest_s = 0.0

    def probability(self, view: FleetView) -> Floats:
        """Return ``(workers,)`` probabilities of failing within ``rest_s``, NaN if not judged."""
        forecast = view.forecast(self._predictor)
        if forecast is None or forecast.horizon_s <= 0:
            return np.full(len(view), np.nan)
        if forecast.id != self.id:
            self.id, self._since_ns = forecast.id, view.now_ns
        age_s = (view.now_ns - self._since_ns) / SECOND_NS
        self.rest_s = max(0.0, (self._horizon_s or forecast.horizon_s) - age_s)
        if self.rest_s == 0.0:
            return np.full(len(view), np.nan)
        p = view.hazard(self._predictor)
        return np.asarray(1.0 - (1.0 - p) ** (self.rest_s / forecast.horizon_s))

    def why(self, view: FleetView, row: int) -> str:
        """Return the predictor's reason for the worker in ``row``, or an empty string."""
        forecast = view.forecast(self._predictor)
        return forecast.why.get(view.workers[row], "") if forecast else ""


_MANY = 64
"""So many suspicions are stored before those that no longer count are dropped."""


class ActedOn:
    """The suspicions that were acted on, so that each is acted on once.

    A suspicion counts as new again after its time, or when its odds have doubled.

    Examples
    --------
    >>> from torchloom_core.plugin import ActedOn
    >>> acted, second_ns = ActedOn(), 10**9
    >>> acted.is_news("group g1", 0.5, now_ns=0)
    True
    >>> acted.add("group g1", 0.5, now_ns=0, for_s=600.0)
    >>> acted.is_news("group g1", 0.6, now_ns=60 * second_ns)
    False
    >>> acted.is_news("group g1", 0.8, now_ns=60 * second_ns)  # four to one, it was one to one
    True
    """

    def __init__(self) -> None:
        self._acted_on: dict[Hashable, tuple[float, int]] = {}
        self._many = _MANY

    def is_news(self, suspicion: Hashable, probability: float, now_ns: int) -> bool:
        """Return whether the suspicion is new, or its odds have doubled since."""
        odds, until_ns = self._acted_on.get(suspicion, (0.0, 0))
        return now_ns >= until_ns or _odds(probability) >= 2.0 * odds

    def add(self, suspicion: Hashable, probability: float, now_ns: int, for_s: float) -> None:
        """Record that the suspicion was acted on; it counts for ``for_s`` seconds."""
        if len(self._acted_on) >= self._many:
            still = {one: was for one, was in self._acted_on.items() if now_ns < was[1]}
            self._acted_on, self._many = still, max(_MANY, 2 * len(still))
        self._acted_on[suspicion] = (_odds(probability), now_ns + round(for_s * SECOND_NS))


def _odds(probability: float) -> float:
    return min(probability, _CERTAIN) / (1.0 - min(probability, _CERTAIN))


class Standbys:
    """The standby groups of a view; each can be reserved once.

    Examples
    --------
    >>> from torchloom_core.plugin import Standbys
    >>> from torchloom_core.testing import view_of
    >>> view = view_of(workers=3, state=["training", "training", "standby"])
    >>> standbys = Standbys(view)
    >>> standbys.fit(rows=[0])
    'g2'
    >>> standbys.take(rows=[0]), standbys.take(rows=[1])
    (True, False)
    >>> standbys.left(workers=1)
    0
    """

    def __init__(self, view: FleetView) -> None:
        self._view = view
        self._nodes: dict[str, list[str]] = {}
        for row in np.flatnonzero(view.is_in("standby")).tolist():
            self._nodes.setdefault(view.group[row], []).append(view.node[row])

    def fit(self, rows: Iterable[int], avoid: Iterable[str] = ()) -> str:
        """Return the first group that could replace the one in ``rows``, or an empty string.

        It is as large, and on other nodes that are neither cordoned nor in ``avoid``.
        """
        nodes = [self._view.node[row] for row in rows]
        barred = {*nodes, *self._view.cordoned, *avoid}
        for group, waiting in self._nodes.items():
            if len(waiting) == len(nodes) and barred.isdisjoint(waiting):
                return group
        return ""

    def left(self, workers: int, avoid: Iterable[str] = ()) -> int:
        """Return how many standby groups of this size could replace a group.

        None of their nodes is cordoned or in ``avoid``.
        """
        barred = {*self._view.cordoned, *avoid}
        return sum(
            len(waiting) == workers and barred.isdisjoint(waiting)
            for waiting in self._nodes.values()
        )

    def take(self, rows: Iterable[int], avoid: Iterable[str] = ()) -> bool:
        """Reserve a standby for the group in ``rows``; return False if none fits."""
        group = self.fit(rows, avoid)
        if group:
            del self._nodes[group]
        return bool(group)


def unsaved_work_s(view: FleetView) -> float | None:
    """Return the work since the last checkpoint, as the training workers report it.

    It is the largest :data:`UNSAVED_WORK` of any, seconds; None if no worker reports it.

    Raises
    ------
    KeyError
        If no active plugin needs the metric: a policy that calls this declares it.

    Examples
    --------
    >>> from torchloom_core.plugin import unsaved_work_s
    >>> from torchloom_core.testing import view_of
    >>> unsaved_work_s(view_of({"unsaved_work_s": [240.0, 250.0, float("nan")]}))
    250.0
    """
    measured = np.where(view.is_in("training", "paused"), view.latest(UNSAVED_WORK), np.nan)
    valid = measured[np.isfinite(measured) & (measured >= 0)]
    return float(valid.max()) if len(valid) else None
