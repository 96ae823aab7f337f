"""The fleet at one tick, as policies and predictors read it."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import AnyArray, Floats, Ints
from torchloom_core.interface.links import Links, LinksOf, links_among
from torchloom_core.wire.events import Fault as Fault
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import KnobSpec, Note

_T = TypeVar("_T")


class Metrics(Protocol):
    """The telemetry of a view: the live ring buffers, or copies of them."""

    def latest(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, NaN where missing or stale."""

    def window(self, metric: str, seconds: float) -> Floats:
        """Return ``(workers, samples)``, oldest first, NaN where missing."""

    def age_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the last valid sample, inf without one."""

    def last_known(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, however old, NaN without one."""

    def moved_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value first changed, NaN if it never did."""

    def rested_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds from the first sample to the first change, or NaN."""

    def changed_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value last changed, NaN if it never did."""


class LighthouseRows(NamedTuple):
    """The last quorum, as torchLoom's lighthouse reports it, by the rows of a view.

    Attributes
    ----------
    quorum_id : int
        The id of the last quorum.
    waiting_s : float
        How long a group had been waiting for the next quorum at the time of the report.
    member : (workers,) bool
        Whether the worker is a member.
    failed : (workers,) bool
        Whether its group requests the next quorum because its last step failed.
    silent : (workers,) bool
        Whether its group requests no quorum although others wait.
    lost : (workers,) bool
        Whether its process has ended, or its group left, since that quorum.

    Examples
    --------
    >>> from torchloom_core.plugin import LighthouseRows
    >>> from torchloom_core.testing import view_of
    >>> view_of(workers=2).lighthouse is None  # where it is torchft's own
    True
    >>> seen: LighthouseRows = view_of(workers=2, lighthouse={"silent": ["w1"]}).lighthouse
    >>> seen.silent
    array([False,  True])
    """

    quorum_id: int
    waiting_s: float
    member: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    lost: NDArray[np.bool_]


class _Labels:
    """Labels, compared by identity: a hello creates a new object."""

    def __init__(self, rows: Sequence[Mapping[str, str | float]]) -> None:
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Labels) and self.rows is other.rows


@lru_cache(maxsize=16)
def _only(labels: _Labels, names: tuple[str, ...]) -> Sequence[Mapping[str, str | float]]:
    """Return the labels with these names, the same object if there are no others."""
    if all(row.keys() <= {*names} for row in labels.rows):
        return labels.rows
    return tuple(
        MappingProxyType({name: row[name] for name in names if name in row}) for row in labels.rows
    )


class FleetView:
    """The fleet at one tick, in columns.

    A worker has the same row for the whole run, so a policy may have its own arrays between ticks;
    rows are only added (see :func:`grow`). Arrays are read-only and valid until ``on_tick``
    returns.

    Attributes
    ----------
    now_ns : int
        Time of the tick, nanoseconds since the Unix epoch.
    tick_s : float
        Seconds between ticks, and between samples in a window.
    workers : sequence of str
        Worker ids, one per row.
    group, node, rack : sequence of str
        Replica group, node and rack of each row (``""`` if unknown).
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
        workers: Sequence[str],
        group: Sequence[str],
        node: Sequence[str],
        rack: Sequence[str],
        labels: Sequence[Mapping[str, str | float]],
        state: Sequence[str],
        step: Ints,
        heartbeat_age_s: Floats,
        progress_age_s: Floats,
        watched_s: Floats,
        metrics: Metrics,
        knob_specs: Mapping[str, KnobSpec],
        knob_values: Sequence[Mapping[str, KnobValue]],
        forecasts: Mapping[str, Forecast],
        predictors: Set[str],
        faults: Sequence[Fault],
        faults_of: Mapping[str, tuple[Fault, ...]],
        costs: Costs,
        cordoned: Set[str] = frozenset(),
        lighthouse: LighthouseRows | None = None,
        links_of: LinksOf | None = None,
        can_be_probed: NDArray[np.bool_] | None = None,
        notes: Mapping[str, Mapping[int, Note]] | None = None,
    ) -> None:
        self.now_ns = now_ns
        self.tick_s = tick_s
        self.workers = workers
        self.group = group
        self.node = node
        self.rack = rack
        self.labels = labels
        self.state = state
        self.step = step
        self.heartbeat_age_s = heartbeat_age_s
        self.progress_age_s = progress_age_s
        self.watched_s = watched_s
        self.knob_specs = knob_specs
        self.faults = faults
        self.faults_of = faults_of
        self.costs = costs
        self.cordoned = cordoned
        self.lighthouse = lighthouse
        self._metrics = metrics
        self._knob_values = knob_values
        self._forecasts = forecasts
        self._predictors = predictors
        self.can_be_probed = (
            np.zeros(len(workers), dtype=bool) if can_be_probed is None else can_be_probed
        )
        self._links_of = links_of or {}
        self._notes = notes or {}
        self._computed: dict[Hashable, Any] = {}

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
        return self.once(("with_labels", names), lambda view: view._with_labels(names))

    def _with_labels(self, names: tuple[str, ...]) -> "FleetView":
        labels = _only(_Labels(self.labels), names)
        if labels is self.labels:
            return self
        other = object.__new__(type(self))
        vars(other).update(vars(self), labels=labels, _computed={})
        return other

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
        """Return the newest value of ``metric``, ``(workers,)``, NaN where missing or stale.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the metric.
        """
        return self._metrics.latest(metric)

    def window(self, metric: str, seconds: float) -> Floats:
        """Return the last ``seconds`` of ``metric``: ``(workers, samples)``, oldest first.

        Samples are ``tick_s`` apart; NaN where no sample arrived.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the metric over so long a window.
        """
        return self._metrics.window(metric, seconds)

    def age_s(self, metric: str) -> Floats:
        """Return seconds since the last valid sample, ``(workers,)``, inf without one.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the metric.
        """
        return self._metrics.age_s(metric)

    def last_known(self, metric: str) -> Floats:
        """Return the newest value of ``metric`` however old it is, ``(workers,)``, NaN without one.

        For a metric that is reported only when it changes.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the metric.
        """
        return self._metrics.last_known(metric)

    def moved_s(self, metric: str) -> Floats:
        """Return seconds since ``metric`` first changed, ``(workers,)``, NaN if it never did.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the past of the metric.
        """
        return self._metrics.moved_s(metric)

    def rested_s(self, metric: str) -> Floats:
        """Return how long ``metric`` was constant before its first change, ``(workers,)``, seconds.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the past of the metric.
        """
        return self._metrics.rested_s(metric)

    def changed_s(self, metric: str) -> Floats:
        """Return seconds since ``metric`` last changed, ``(workers,)``, NaN if it never did.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the past of the metric.
        """
        return self._metrics.changed_s(metric)

    def note(self, kind: str, row: int) -> Note | None:
        """Return the newest note of a kind of the worker in ``row`` in this incarnation, or None.

        Raises
        ------
        KeyError
            If no active plugin declared that it reads notes of this kind.

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
        """Return the predictor's newest forecast, or None before the first.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the predictor's forecasts.
        """
        forecast = self._newest(predictor)
        if forecast is None:
            return None
        return msgspec.structs.replace(
            forecast, hazard=dict(forecast.hazard), why=dict(forecast.why)
        )

    def hazard(self, predictor: str) -> Floats:
        """Return the newest failure probability per worker, ``(workers,)``, NaN if not judged.

        Raises
        ------
        KeyError
            If no active plugin declared a need for the predictor's forecasts.
        """
        forecast = self._newest(predictor)
        hazard = forecast.hazard if forecast else {}
        return np.fromiter((hazard.get(w, np.nan) for w in self.workers), float, len(self.workers))

    def _newest(self, predictor: str) -> Forecast | None:
        if predictor not in self._predictors:
            raise KeyError(f"{predictor}: need a NeedForecast of it in needs")
        return self._forecasts.get(predictor)


def grow(array: AnyArray, workers: int, fill: float = 0) -> AnyArray:
    """Return ``array`` lengthened along its first axis to ``workers`` rows of ``fill``.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import grow
    >>> grow(np.array([3, 4]), 3)
    array([3, 4, 0])
    """
    more = workers - len(array)
    if more == 0:
        return array
    padding = [(0, more)] + [(0, 0)] * (array.ndim - 1)
    return cast(AnyArray, np.pad(array, padding, constant_values=fill))
