"""Fault history of each worker as columns, for :mod:`torchloom_core.lab.learning.features`.

Columns are of the worker's node, of the other nodes in its group, and of all other nodes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.faults import incidents, places_of
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.learning.words import in_words
from torchloom_core.wire.events import Fault


class Peers(NamedTuple):
    """Nodes in groups.

    Groups are numbered from 0, with one more for nodes without one. ``order`` sorts the nodes by
    group, ``starts`` is where each begins there. ``others`` is ``(nodes, 1)``, the number of other
    nodes in each node's group, NaN without one.
    """

    group: NDArray[np.intp]
    order: NDArray[np.intp]
    starts: NDArray[np.intp]
    others: Floats

    @classmethod
    def of(cls, group: NDArray[np.intp]) -> "Peers":
        """Build from group numbers, -1 for nodes without a group."""
        outside = group < 0
        group = np.unique(np.where(outside, len(group), group), return_inverse=True)[1]
        members = np.bincount(group)
        starts = np.cumsum(members) - members
        others = np.where(outside, np.nan, members[group] - 1.0)
        return cls(group, np.argsort(group, kind="stable"), starts, others[:, None])

    def mean_of_others(self, own: Floats) -> Floats:
        """Return ``(nodes, half lives)``: the mean over the other nodes of each node's group."""
        sums = np.add.reduceat(own[self.order], self.starts)
        # Rounding removes the remainder of the subtraction.
        others = np.round(sums[self.group] - own, 9)
        with np.errstate(invalid="ignore"):
            mean: Floats = others / self.others
        return mean


class Places(NamedTuple):
    """The node of each worker, and the groups of nodes.

    ``source`` is what this was built from, ``row_of`` numbers the nodes, ``rows`` are those
    numbers, ``(workers,)``. ``peers`` are by rack, by fleet, and by each label in ``groups``.
    """

    source: tuple[Sequence[Any], ...]
    row_of: dict[str, int]
    rows: NDArray[np.intp]
    peers: list[Peers]

    @classmethod
    def of(
        cls,
        source: tuple[Sequence[Any], ...],
        groups: Sequence[str],
        places: Sequence[str],
    ) -> "Places":
        """Assign numbers to places, racks and labels.

        ``source`` has the workers, and the node, the rack and the labels of each.
        """
        _, _, rack, labels = source
        row_of = {place: row for row, place in enumerate(dict.fromkeys(places))}
        rows = np.fromiter((row_of[place] for place in places), np.intp, len(places))

        def numbered(names: Sequence[str | float | None]) -> Peers:
            number: dict[str | float | None, int] = {"": -1, None: -1}
            for name in names:
                number.setdefault(name, len(number) - 2)
            group = np.full(len(row_of), -1, dtype=np.intp)
            group[rows] = [number[name] for name in names]
            return Peers.of(group)

        fleet = Peers.of(np.zeros(len(row_of), dtype=np.intp))
        same = [numbered([of.get(name) for of in labels]) for name in groups]
        return cls(source, row_of, rows, [numbered(rack), fleet, *same])


MEMORY_HALF_LIVES = 5
"""Half lives for which faults are remembered; older faults weigh less than 1/32."""

_LEAST_WATCHED = 0.25
"""Least share of the observed time by which counts of other nodes are scaled up."""

_OWN = ("faults in the last {}", "seconds since the last fault")
_FADING = ("faults, halved every {}", "warnings, halved every {}")
_OF_OTHERS = (
    "faults a node of the others in its group, halved every {}",
    "faults a node of the others in the fleet, halved every {}",
)
_SAME = "faults a node of the others whose {} is the same, halved every {}"


class History(NamedTuple):
    """Fault history of each worker's node, and of its peers.

    Attributes
    ----------
    faults : (workers,) float64
        Number of remembered incidents.
    since_s : (workers,) float64
        Seconds since the last of them, NaN without one.
    decayed : (workers, half lives) float64
        Sum of 2^(-age / half life) over the incidents.
    warnings : (workers, half lives) float64
        The same for faults that were not fatal.
    in_group, in_fleet : (workers, half lives) float64
        Mean of ``decayed`` over the other nodes of its group, and of the fleet, scaled up for the
        time before observation began; NaN without other nodes.
    in_same : (workers, groups x half lives) float64
        The same for nodes with an equal label, label by label.

    Examples
    --------
    >>> from torchloom_core.lab.learning import Features, History
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
    """Exponentially decayed fault counts of nodes at several half lives, all workers at once.

    Results are cached while places and faults stay the same. Parameters are those of
    :class:`Features`; ``groups`` is None for no columns of other nodes. ``memory_s`` is how long
    faults have to be remembered.

    Examples
    --------
    >>> from torchloom_core.lab.learning import FaultColumns
    >>> from torchloom_core.testing import view_of
    >>> columns = FaultColumns([86_400.0], incident_s=60.0)
    >>> columns.memory_s, columns.compute(view_of(workers=3)).shape
    (432000.0, (3, 6))
    """

    def __init__(
        self, half_lives_s: Sequence[float], incident_s: float, groups: Sequence[str] | None = ()
    ) -> None:
        self._half_lives_s = tuple(half_lives_s)
        self._groups = groups
        self._incident_s = incident_s
        self._fleet = Places.of(((), (), (), ()), (), ())
        self._struck: dict[str, _Struck] = {}
        self._fleet_faults = _FleetFaults((), self._fleet, _placed([]), _placed([]))
        self.memory_s = MEMORY_HALF_LIVES * max(half_lives_s, default=0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        memory = in_words(self.memory_s)
        fading = _FADING if self._groups is None else (*_FADING, *_OF_OTHERS)
        faded = [text.format(in_words(s)) for text in fading for s in self._half_lives_s]
        groups = self._groups or ()
        same = [_SAME.format(of, in_words(s)) for of in groups for s in self._half_lives_s]
        return (*(text.format(memory) for text in _OWN), *faded, *same)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, columns)``, one for each of ``names``."""
        fleet = self._fleet_of(view)
        nodes = len(fleet.row_of)
        (at, age_s), warned = self._incidents(view, fleet)
        count = np.bincount(at, minlength=nodes).astype(float)
        since_s = np.full(nodes, np.nan)
        np.fmin.at(since_s, at, age_s)
        own = self._faded(at, age_s, nodes)
        blocks = [count[:, None], since_s[:, None], own]
        blocks.append(self._faded(*warned, nodes))
        if self._groups is not None:
            watched = self._watched(view)
            blocks += [peers.mean_of_others(own) / watched for peers in fleet.peers]
        columns: Floats = np.concatenate(blocks, axis=1)[fleet.rows]
        return columns

    def history(self, columns: Floats) -> History:
        """Split the columns of :meth:`compute` into a History."""
        width, end = len(self._half_lives_s), columns.shape[1]
        edges = [2 + width * place for place in range(len(_FADING) + len(_OF_OTHERS) + 1)]
        blocks = (columns[:, start:stop] for start, stop in pairwise([*edges, end]))
        return History(columns[:, 0], columns[:, 1], *blocks)

    def _faded(self, at: NDArray[np.intp], age_s: Floats, nodes: int) -> Floats:
        """Return ``(nodes, half lives)``."""
        weights = 0.5 ** (age_s / np.array(self._half_lives_s)[:, None])
        return np.array([np.bincount(at, of, nodes) for of in weights]).T

    def _watched(self, view: FleetView) -> Floats:
        """Return the observed share of the decayed time; without it, counts would grow daily."""
        watched_s = np.fmax.reduce(view.watched_s, initial=np.nan)
        if np.isnan(watched_s):
            return np.ones(len(self._half_lives_s))
        share = 1.0 - 0.5 ** (watched_s / np.array(self._half_lives_s))
        counted: Floats = np.maximum(share, _LEAST_WATCHED)
        return counted

    def _fleet_of(self, view: FleetView) -> Places:
        source = (view.workers, view.node, view.rack, view.labels)
        if any(one is not other for one, other in zip(source, self._fleet.source, strict=True)):
            self._fleet = Places.of(source, self._groups or (), places_of(view))
        return self._fleet

    def _incidents(self, view: FleetView, fleet: Places) -> list[tuple[NDArray[np.intp], Floats]]:
        """Return node and age in seconds of each remembered incident, and of each warning."""
        cached = self._fleet_faults
        if view.faults is not cached.faults or fleet is not cached.fleet:
            self._struck = self._struck_by(view)
            here = [(fleet.row_of[at], of) for at, of in self._struck.items() if at in fleet.row_of]
            self._fleet_faults = _FleetFaults(
                view.faults,
                fleet,
                _placed([(row, of.began_ns) for row, of in here]),
                _placed([(row, of.warned_ns) for row, of in here]),
            )
        return [self._remembered(view.now_ns, *struck) for struck in self._fleet_faults[2:]]

    def _struck_by(self, view: FleetView) -> dict[str, "_Struck"]:
        """Return the incidents of each place, cached while its faults stay the same."""
        struck: dict[str, _Struck] = {}
        for place, faults in view.faults_of.items():
            cached = self._struck.get(place)
            if cached is not None and cached.faults is faults:
                struck[place] = cached
                continue
            warned = [fault for fault in faults if not fault.fatal]
            moments = (incidents(some, self._incident_s) for some in (faults, warned))
            struck[place] = _Struck(faults, *(np.array(ns, dtype=np.int64) for ns in moments))
        return struck

    def _remembered(
        self, now_ns: int, at: NDArray[np.intp], struck_ns: Ints
    ) -> tuple[NDArray[np.intp], Floats]:
        age_s = (now_ns - struck_ns) / SECOND_NS
        remembered = age_s <= self.memory_s
        return at[remembered], np.maximum(age_s[remembered], 0.0)


class _Struck(NamedTuple):
    """Start times of the incidents and warnings of one place."""

    faults: tuple[Fault, ...]
    began_ns: Ints
    warned_ns: Ints


class _FleetFaults(NamedTuple):
    """Node and start time of all incidents of a fleet, and of all warnings."""

    faults: Sequence[Fault]
    fleet: Places
    began: tuple[NDArray[np.intp], Ints]
    warned: tuple[NDArray[np.intp], Ints]


def _placed(struck: Sequence[tuple[int, Ints]]) -> tuple[NDArray[np.intp], Ints]:
    """Return the node of each moment, and the moments."""
    rows = np.array([row for row, _ in struck], dtype=np.intp)
    moments = [np.zeros(0, dtype=np.int64), *(ns for _, ns in struck)]
    return np.repeat(rows, [len(ns) for _, ns in struck]), np.concatenate(moments)
