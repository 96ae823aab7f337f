"""What the faults of a fleet tell of each worker; :mod:`torchloom_core.learning.features` asks.

Columns are of the worker's node, of the others in its group, and of all other nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.learning.words import in_words
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.plugin.faults import incidents, places_of
from torchloom_core.plugin.view import FleetView
from torchloom_core.wire.events import Fault

MEMORY_HALF_LIVES = 5
"""How many half lives of faults are remembered; what is older weighs less than 1/32."""

_LEAST_WATCHED = 0.25
"""From so little on what was seen of others is taken for what would have been seen all along."""

_OWN = ("faults in the last {}", "seconds since the last fault")
_FADING = (
    "faults, halved every {}",
    "warnings, halved every {}",
    "faults a node of the others in its group, halved every {}",
    "faults a node of the others in the fleet, halved every {}",
)
_SAME = "faults a node of the others whose {} is the same, halved every {}"


class History(NamedTuple):
    """What the faults of a worker's node look like from now, and those of its peers.

    Attributes
    ----------
    faults : (workers,) float64
        How many incidents are remembered.
    since_s : (workers,) float64
        Seconds since the last of them, NaN without one.
    decayed : (workers, half lives) float64
        Sum of 2^(-age / half life) over the incidents.
    warnings : (workers, half lives) float64
        The same of faults that were not fatal.
    in_group, in_fleet : (workers, half lives) float64
        Mean of ``decayed`` over the other nodes of its group, and of the fleet, as if they had
        been watched all along; NaN without any.
    in_same : (workers, groups x half lives) float64
        The same of those that have a label in common, group by group.

    Examples
    --------
    >>> from torchloom_core.learning import Features, History
    >>> from torchloom_core.plugin import Fault
    >>> from torchloom_core.testing import view_of
    >>> features = Features(half_lives_s=(86_400.0,))
    >>> fault = Fault(worker="", node="n0", kind="xid", ts_ns=1_700_000_000 * 10**9, id="f1")
    >>> view = view_of(workers=2, now_s=1_700_086_400.0, faults=[fault])
    >>> history: History = features.history(features.compute(view))
    >>> history.faults, history.since_s, history.decayed[:, 0], history.in_fleet[:, 0]
    (array([1., 0.]), array([86400.,    nan]), array([0.5, 0. ]), array([0. , 0.5]))
    """

    faults: Floats
    since_s: Floats
    decayed: Floats
    warnings: Floats
    in_group: Floats
    in_fleet: Floats
    in_same: Floats


class FaultColumns:
    """The faults of nodes at several half lives, all workers at once.

    What is asked again of the same places, or of a place at which nothing has happened since, is
    not taken apart again.

    Parameters
    ----------
    half_lives_s : sequence of float
        Ages at which a fault counts half, seconds; at least one.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.
    groups : sequence of str
        Labels of which nodes may have the same.

    Attributes
    ----------
    memory_s : float
        How far back faults have to be remembered, seconds.

    Examples
    --------
    >>> from torchloom_core.learning import FaultColumns
    >>> from torchloom_core.testing import view_of
    >>> columns = FaultColumns([86_400.0], incident_s=60.0)
    >>> columns.memory_s, columns.compute(view_of(workers=3)).shape
    (432000.0, (3, 6))
    """

    def __init__(
        self, half_lives_s: Sequence[float], incident_s: float, groups: Sequence[str] = ()
    ) -> None:
        self._half_lives_s = tuple(half_lives_s)
        self._groups = tuple(groups)
        self._incident_s = incident_s
        self._fleet = _Fleet.of((), (), (), (), (), ())
        self._struck: dict[str, _Struck] = {}
        self.memory_s = MEMORY_HALF_LIVES * max(half_lives_s, default=0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """What each column is."""
        memory = in_words(self.memory_s)
        fading = [text.format(in_words(s)) for text in _FADING for s in self._half_lives_s]
        same = [_SAME.format(of, in_words(s)) for of in self._groups for s in self._half_lives_s]
        return (*(text.format(memory) for text in _OWN), *fading, *same)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, 2 + (4 + groups) x half lives)``."""
        fleet = self._fleet_of(view)
        nodes = len(fleet.row_of)
        at, age_s, warned_at, warned_age_s = self._incidents(view, fleet)
        count = np.bincount(at, minlength=nodes).astype(float)
        since_s = np.full(nodes, np.nan)
        np.fmin.at(since_s, at, age_s)
        own = self._faded(at, age_s, nodes)
        columns = [
            count,
            since_s,
            *own.T,
            *self._faded(warned_at, warned_age_s, nodes).T,
        ]
        watched = self._watched(view)
        for group in (fleet.group, np.zeros(nodes, dtype=np.intp), *fleet.same):
            columns += [*(_mean_of_others(own, group) / watched).T]
        return np.column_stack([column[fleet.rows] for column in columns])

    def history(self, columns: Floats) -> History:
        """Return what :meth:`compute` gave, by what it is."""
        faults, since_s = columns[:, 0], columns[:, 1]
        width = len(self._half_lives_s)
        edges = [2 + width * place for place in range(1, len(_FADING) + 1)]
        return History(faults, since_s, *np.split(columns, [2, *edges], axis=1)[1:])

    def _faded(self, at: NDArray[np.intp], age_s: Floats, nodes: int) -> Floats:
        """Return ``(nodes, half lives)``."""
        faded = [np.bincount(at, 0.5 ** (age_s / s), nodes) for s in self._half_lives_s]
        return np.column_stack(faded)

    def _watched(self, view: FleetView) -> Floats:
        """Return for each half life which share of all that counts the fleet was watched for.

        Without it whatever began lately would have few faults, and more from day to day.
        """
        watched_s = np.fmax.reduce(view.watched_s, initial=np.nan)
        if np.isnan(watched_s):
            return np.ones(len(self._half_lives_s))
        share = 1.0 - 0.5 ** (watched_s / np.array(self._half_lives_s))
        counted: Floats = np.maximum(share, _LEAST_WATCHED)
        return counted

    def _fleet_of(self, view: FleetView) -> "_Fleet":
        asked = (view.workers, view.node, view.rack, view.labels)
        if any(one is not other for one, other in zip(asked, self._fleet.asked, strict=True)):
            self._fleet = _Fleet.of(*asked, self._groups, places_of(view))
        return self._fleet

    def _incidents(
        self, view: FleetView, fleet: "_Fleet"
    ) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp], Floats]:
        """Return node and age in seconds of each incident, and of each warning."""
        struck: dict[str, _Struck] = {}
        for place, faults in view.faults_of.items():
            known = self._struck.get(place)
            same = known is not None and known.faults is faults
            struck[place] = known if known and same else _Struck.of(faults, self._incident_s)
        self._struck = struck
        here = [
            (fleet.row_of[place], one) for place, one in struck.items() if place in fleet.row_of
        ]
        return (
            *self._remembered(view.now_ns, [(row, one.began_ns) for row, one in here]),
            *self._remembered(view.now_ns, [(row, one.warned_ns) for row, one in here]),
        )

    def _remembered(
        self, now_ns: int, struck: Sequence[tuple[int, Ints]]
    ) -> tuple[NDArray[np.intp], Floats]:
        if not struck:
            return np.zeros(0, dtype=np.intp), np.zeros(0)
        rows, stamps = zip(*struck, strict=True)
        at = np.repeat(np.array(rows, dtype=np.intp), [len(ns) for ns in stamps])
        age_s = (now_ns - np.concatenate(stamps)) / SECOND_NS
        remembered = age_s <= self.memory_s
        return at[remembered], np.maximum(age_s[remembered], 0.0)


class _Struck(NamedTuple):
    """When the incidents and the warnings of one place began, from the faults told of it."""

    faults: tuple[Fault, ...]
    began_ns: Ints
    warned_ns: Ints

    @classmethod
    def of(cls, faults: tuple[Fault, ...], incident_s: float) -> "_Struck":
        warned = [fault for fault in faults if not fault.fatal]
        return cls(faults, *(_began(some, incident_s) for some in (faults, warned)))


def _began(faults: Iterable[Fault], incident_s: float) -> Ints:
    return np.array(incidents(faults, incident_s), dtype=np.int64)


class _Fleet(NamedTuple):
    """Which workers share a node, and which nodes a group.

    Attributes
    ----------
    asked : tuple of sequence
        Worker, node, rack and labels of each row, of whom this is.
    row_of : dict of str to int
        Node to its number.
    rows : (workers,) intp
        Number of each worker's node.
    group : (nodes,) intp
        Number of each node's group, -1 without one.
    same : list of (nodes,) intp
        The like of each label that is asked for.
    """

    asked: tuple[Sequence[Any], ...]
    row_of: dict[str, int]
    rows: NDArray[np.intp]
    group: NDArray[np.intp]
    same: list[NDArray[np.intp]]

    @classmethod
    def of(
        cls,
        workers: Sequence[str],
        node: Sequence[str],
        rack: Sequence[str],
        labels: Sequence[Mapping[str, str | float]],
        groups: Sequence[str],
        places: Sequence[str],
    ) -> "_Fleet":
        """Return the places, the racks and what labels they have, numbered."""
        row_of = {place: row for row, place in enumerate(dict.fromkeys(places))}
        rows = np.fromiter((row_of[place] for place in places), np.intp, len(places))

        def numbered(told: Sequence[str | float | None]) -> NDArray[np.intp]:
            number: dict[str | float | None, int] = {"": -1, None: -1}
            for one in told:
                number.setdefault(one, len(number) - 2)
            group = np.full(len(row_of), -1, dtype=np.intp)
            group[rows] = [number[one] for one in told]
            return group

        same = [numbered([of.get(name) for of in labels]) for name in groups]
        return cls((workers, node, rack, labels), row_of, rows, numbered(rack), same)


def _mean_of_others(own: Floats, group: NDArray[np.intp]) -> Floats:
    """Return ``(nodes, half lives)``: the mean over the other nodes of each node's group."""
    inside = group >= 0
    members = np.bincount(group[inside], minlength=1).astype(float)
    sums = np.column_stack([np.bincount(group[inside], of[inside], len(members)) for of in own.T])
    # What is left of a sum by rounding is nobody's fault.
    others = np.round(sums[group] - own, 9)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = others / np.where(inside, members[group] - 1, 0.0)[:, None]
    mean[~inside] = np.nan
    return mean
