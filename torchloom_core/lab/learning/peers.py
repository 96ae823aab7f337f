"""Map workers to nodes and nodes to groups, for the columns of faults."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats


class Peers(NamedTuple):
    """Nodes in groups.

    Attributes
    ----------
    group : (nodes,) intp
        Numbered from 0; nodes without a group are one more group.
    order, starts : (nodes,) and (groups,) intp
        The nodes sorted by group, and the start of each group.
    others : (nodes, 1) float64
        Number of other nodes in each node's group, NaN without a group.
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

    Attributes
    ----------
    source : tuple of sequence
        Worker, node, rack and labels of each row that this was built from.
    row_of : dict of str to int
        Node to its number.
    rows : (workers,) intp
        Number of each worker's node.
    peers : list of Peers
        By rack, by fleet, and by each label in ``groups``.
    """

    source: tuple[Sequence[Any], ...]
    row_of: dict[str, int]
    rows: NDArray[np.intp]
    peers: list[Peers]

    @classmethod
    def of(
        cls,
        workers: Sequence[str],
        node: Sequence[str],
        rack: Sequence[str],
        labels: Sequence[Mapping[str, str | float]],
        groups: Sequence[str],
        places: Sequence[str],
    ) -> "Places":
        """Assign numbers to places, racks and labels."""
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
        return cls((workers, node, rack, labels), row_of, rows, [numbered(rack), fleet, *same])
