"""The fleet at one tick, as policies and predictors read it."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface import view_of_roles as parts
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.links import Links, LinksOf, links_among
from torchloom_core.interface.programs import SplitProgram
from torchloom_core.interface.view_parts import (
    Conditions,
    KnownFaults,
    KnownKnobs,
    LighthouseRows,
    Metrics,
    Roster,
)
from torchloom_core.wire.events import Fault as Fault
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import Note

_T = TypeVar("_T")


class FleetView:
    """The fleet at one tick, in columns.

    A worker has the same row for the whole run, so a policy may have its own arrays between ticks;
    rows are only added (see :func:`grow`). Arrays are read-only and valid until ``on_tick``
    returns. It is a KeyError to ask for what no active plugin declared in its ``needs``: a metric,
    so long a window, the past of a metric, notes of a kind, a predictor's forecasts.

    Attributes
    ----------
    now_ns : int
        Time of the tick, nanoseconds since the Unix epoch.
    tick_s : float
        Seconds between ticks, and between samples in a window.
    workers : sequence of str
        Worker ids, one per row.
    roster : Roster
        The rows' ids and placements: the same object as at the last tick if no worker has
        registered since.
    labels : sequence of mapping of str to (str or float)
        Fixed properties of each row, such as its model or size: the same object as at the last
        tick if no worker has registered since.
    state : sequence of str
        ``standby``, ``joining``, ``training``, ``paused``, ``draining`` or ``left`` as the
        worker reports; ``gone`` once its process has ended.
    step : (workers,) int64
        Last finished step, -1 before the first.
    heartbeat_age_s : (workers,) float64
        Seconds since the last message of the worker.
    progress_age_s : (workers,) float64
        Seconds since its trainer last finished a step, as reported.
    watched_s : (workers,) float64
        Seconds since its first sample, of any incarnation; NaN before.
    faults : sequence of Fault
        Faults of the last day, or of the time of a :class:`NeedFaults`, oldest first: the same
        object as at the last tick if nothing has changed.
    faults_of : mapping of str to tuple of Fault
        The same by ``Fault.place``: node, or worker if its node is unknown. A place's tuple is the
        same object as at the last tick if nothing has changed there.
    costs : Costs
        The costs of failures and actions, from the config.
    cordoned : set of str
        The cordoned nodes.
    knob_specs : mapping of str to KnobSpec
        The knobs of all workers, by name.
    lighthouse : LighthouseRows, optional
        The report of torchLoom's lighthouse; None without one.
    can_be_probed : (workers,) bool
        Whether links from and to the worker can be probed.
    programs : mapping of str to SplitProgram
        Programs that are split over workers, by role.
    suspended : mapping of str to str
        By role the policy that suspended it; ``person``: somebody else did.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import FleetView
    >>> from torchloom_core.testing import view_of
    >>> loss = [[3.0, 2.5], [3.1, np.nan]]
    >>> view: FleetView = view_of({"loss": loss}, state=["training", "draining"])
    >>> len(view), view.workers
    (2, ('w0', 'w1'))
    >>> view.window("loss", 2.0)
    array([[3. , 2.5],
           [3.1, nan]])
    >>> np.where(view.is_in("training"), view.latest("loss"), np.nan)
    array([2.5, nan])
    """

    def __init__(
        self,
        *,
        now_ns: int,
        tick_s: float,
        costs: Costs,
        roster: Roster,
        conditions: Conditions,
        metrics: Metrics,
        knobs: KnownKnobs,
        forecasts: Mapping[str, Forecast | None],
        faults: KnownFaults,
        cordoned: Set[str],
        links_of: LinksOf,
        notes: Mapping[str, Mapping[int, Note]],
        lighthouse: LighthouseRows | None = None,
    ) -> None:
        self.now_ns = now_ns
        self.tick_s = tick_s
        self.costs = costs
        self.roster = roster
        self.workers = roster.workers
        self.labels = roster.labels
        self.can_be_probed = roster.can_be_probed
        (
            self.state,
            self.step,
            self.heartbeat_age_s,
            self.progress_age_s,
            self.watched_s,
        ) = conditions
        self.knob_specs, self._knob_values, self._specs_of = knobs
        self.faults, self.faults_of = faults
        self.cordoned = cordoned
        self.lighthouse = lighthouse
        self.programs: Mapping[str, SplitProgram] = {}
        self.suspended: Mapping[str, str] = {}
        self._metrics = metrics
        self._forecasts = forecasts
        self._links_of = links_of
        self._notes = notes
        self._computed: dict[Hashable, Any] = {}

    @property
    def role(self) -> Sequence[str]:
        """The role of each row: which program of the run it belongs to."""
        return self.roster.role

    @property
    def group(self) -> Sequence[str]:
        """The replica group of each row."""
        return self.roster.group

    @property
    def stage(self) -> Ints:
        """The pipeline stage of each row, ``(workers,)``."""
        return self.roster.stage

    @property
    def node(self) -> Sequence[str]:
        """The node of each row, ``""`` if unknown."""
        return self.roster.node

    @property
    def rack(self) -> Sequence[str]:
        """The rack of each row, ``""`` if unknown."""
        return self.roster.rack

    def twin(self) -> "FleetView":
        """Return a copy whose mappings can be modified without an effect on this view."""
        twin = object.__new__(type(self))
        own: dict[str, Any] = {
            "knob_specs": dict(self.knob_specs),
            "faults_of": dict(self.faults_of),
            "_computed": {},
        }
        vars(twin).update(vars(self), **own)
        return twin

    def with_labels(self, names: tuple[str, ...]) -> "FleetView":
        """Return this view with only these labels; the same object if it has no others."""
        roster = self.roster.with_labels(names)
        if roster is self.roster:
            return self
        return self.once(("with_labels", names), lambda view: view._with_roster(roster))

    def _with_roster(self, roster: Roster) -> "FleetView":
        other = object.__new__(type(self))
        vars(other).update(vars(self), roster=roster, labels=roster.labels, _computed={})
        return other

    def of_roles(self, roles: tuple[str, ...]) -> "FleetView":
        """Return this view with only the workers of these roles; itself if it has no others.

        Empty ``roles`` stand for all. Faults of nodes stay.

        Examples
        --------
        >>> from torchloom_core.testing import view_of
        >>> view = view_of({"loss": [2.0, 9.0]}, role=["trainer", "rollout"])
        >>> view.of_roles(("trainer",)).latest("loss")
        array([2.])
        """
        roster, rows = self.roster.of_roles(roles) if roles else (self.roster, ())
        if roster is self.roster:
            return self
        return self.once(("of_roles", roles), lambda view: view._part(roster, np.asarray(rows)))

    def _part(self, roster: Roster, rows: NDArray[np.intp]) -> "FleetView":
        part, workers, faults = object.__new__(type(self)), roster.workers, roster.own_faults
        own: dict[str, Any] = {
            "roster": roster,
            "workers": workers,
            "labels": roster.labels,
            "can_be_probed": roster.can_be_probed,
            "state": tuple(self.state[row] for row in rows.tolist()),
            "step": self.step[rows],
            "heartbeat_age_s": self.heartbeat_age_s[rows],
            "progress_age_s": self.progress_age_s[rows],
            "watched_s": self.watched_s[rows],
            "knob_specs": parts.specs_of(self._specs_of, roster.role) or self.knob_specs,
            "faults": faults.all(self.faults),
            "faults_of": faults.by_place(self.faults_of),
            "lighthouse": parts.lighthouse_of(self.lighthouse, rows),
            "programs": {r: p for r, p in self.programs.items() if r in roster.role},
            "suspended": {r: by for r, by in self.suspended.items() if r in roster.role},
            "_knob_values": tuple(self._knob_values[row] for row in rows.tolist()),
            "_metrics": parts.MetricsOf(self._metrics, rows),
            "_forecasts": {n: parts.forecast_of(f, workers) for n, f in self._forecasts.items()},
            "_notes": {kind: parts.by_row(of, rows) for kind, of in self._notes.items()},
            "_computed": {},
        }
        vars(part).update(vars(self), **own)
        return part

    def __len__(self) -> int:
        return len(self.workers)

    def once(self, key: Hashable, compute: Callable[["FleetView"], _T]) -> _T:
        """Return ``compute(view)``, computed once per key and shared by all callers.

        Examples
        --------
        >>> from torchloom_core.testing import view_of
        >>> view = view_of({"loss": [2.0, 3.0]})
        >>> def mean(view):
        ...     return view.latest("loss").mean()
        >>> view.once("mean", mean) is view.once("mean", mean)
        True
        """
        if key not in self._computed:
            self._computed[key] = compute(self)
        found: _T = self._computed[key]
        return found

    @property
    def now_s(self) -> float:
        """Time of the tick, seconds since the Unix epoch."""
        return self.now_ns / SECOND_NS

    def is_in(self, *states: str) -> NDArray[np.bool_]:
        """Return ``(workers,)``: true where the worker is in one of ``states``."""
        return np.fromiter(map(states.__contains__, self.state), bool, len(self.state))

    def latest(self, metric: str) -> Floats:
        """Return the newest value of ``metric``, ``(workers,)``, NaN where missing or stale."""
        return self._metrics.latest(metric)

    def window(self, metric: str, seconds: float) -> Floats:
        """Return the last ``seconds`` of ``metric``: ``(workers, samples)``, oldest first.

        Samples are ``tick_s`` apart; NaN where no sample arrived.
        """
        return self._metrics.window(metric, seconds)

    def age_s(self, metric: str) -> Floats:
        """Return seconds since the last valid sample, ``(workers,)``, inf without one."""
        return self._metrics.age_s(metric)

    def last_known(self, metric: str) -> Floats:
        """Return the newest value of ``metric`` however old it is, ``(workers,)``, NaN without one.

        For a metric that is reported only when it changes.
        """
        return self._metrics.last_known(metric)

    def moved_s(self, metric: str) -> Floats:
        """Return seconds since ``metric`` first changed, ``(workers,)``, NaN if it never did."""
        return self._metrics.moved_s(metric)

    def rested_s(self, metric: str) -> Floats:
        """Return how long ``metric`` was constant before it first changed, ``(workers,)``, s."""
        return self._metrics.rested_s(metric)

    def changed_s(self, metric: str) -> Floats:
        """Return seconds since ``metric`` last changed, ``(workers,)``, NaN if it never did."""
        return self._metrics.changed_s(metric)

    def note(self, kind: str, row: int) -> Note | None:
        """Return the newest note of a kind of the worker in ``row`` in this incarnation, or None.

        Examples
        --------
        >>> from torchloom_core.plugin import Note
        >>> from torchloom_core.testing import view_of
        >>> saved = Note(run="r", worker="w0", incarnation=1, kind="saved", fields={"took_s": 3.5})
        >>> view = view_of(workers=2, notes={"saved": {0: saved}})
        >>> view.note("saved", 0).fields["took_s"], view.note("saved", 1)
        (3.5, None)
        """
        if kind not in self._notes:
            raise KeyError(f"{kind}: need a NeedNotes of it in needs")
        return self._notes[kind].get(row)

    def knob(self, name: str) -> list[KnobValue | None]:
        """Return the knob's present value per worker, None for a worker without the knob."""
        return [values.get(name) for values in self._knob_values]

    def links(self, rows: Iterable[int]) -> Links:
        """Return the measured links among workers, given by their rows, each once.

        Raises
        ------
        IndexError
            If a row does not exist.
        """
        return links_among(self._links_of, [self.workers[row] for row in rows], self.now_ns)

    def forecast(self, predictor: str) -> Forecast | None:
        """Return the predictor's newest forecast, or None before the first."""
        forecast = self._newest(predictor)
        if forecast is None:
            return None
        return msgspec.structs.replace(
            forecast, hazard=dict(forecast.hazard), why=dict(forecast.why)
        )

    def hazard(self, predictor: str) -> Floats:
        """Return the newest failure probability per worker, ``(workers,)``, NaN if not judged."""
        forecast = self._newest(predictor)
        hazard = forecast.hazard if forecast else {}
        return np.fromiter((hazard.get(w, np.nan) for w in self.workers), float, len(self.workers))

    def _newest(self, predictor: str) -> Forecast | None:
        if predictor not in self._forecasts:
            raise KeyError(f"{predictor}: need a NeedForecast of it in needs")
        return self._forecasts[predictor]
