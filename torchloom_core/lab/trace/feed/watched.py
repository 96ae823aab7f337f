"""The components of a trace that play the workers of a fleet, with their labels."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.wire.limits import MAX_FIELDS, MAX_SHORT_TEXT

Label = str | float


class Labels(NamedTuple):
    """The labels of all components, and the informative ones that are numbers and words."""

    of: tuple[dict[str, Label], ...] = ()
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


NO_LABELS = Labels()


def labels_from(rows: Sequence[Mapping[str, Any]]) -> Labels:
    """Return the labels in the columns of a table, one row per component.

    A column of numbers is numeric, and so is one of dates, which become seconds since 1970; any
    other column is text. Cells that are lists or tables are left out.
    """
    of: list[dict[str, Label]] = [{} for _ in rows]
    numbers, words = [], []
    for name in sorted({name for row in rows for name in row})[:MAX_FIELDS]:
        column = _column([row.get(name) for row in rows])
        for row, label in zip(of, column, strict=True):
            if label is not None:
                row[name] = label
        filled = [label for label in column if label is not None]
        different = set(filled)
        if len(different) < 2:
            continue
        if all(isinstance(label, float) for label in different):
            numbers.append(name)
        elif len(different) < len(filled):
            words.append(name)
    return Labels(tuple(of), tuple(numbers), tuple(words))


def _column(cells: Sequence[Any]) -> Sequence[Label | None]:
    plain = [cell if isinstance(cell, str | int | float) and cell != "" else None for cell in cells]
    for read in (_number, _date):
        column = [None if cell is None else read(cell) for cell in plain]
        if all(math.isfinite(label) for label in column if label is not None):
            return column
    return [None if cell is None else str(cell)[:MAX_SHORT_TEXT] for cell in plain]


def _number(cell: str | float) -> float:
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def _date(cell: str | float) -> float:
    try:
        moment = datetime.fromisoformat(str(cell))
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_NODE = "node"


@dataclass(frozen=True)
class Watched:
    """The watched components, one per row, sorted by id."""

    ids: tuple[str, ...]
    node: tuple[str, ...]
    rack: tuple[str, ...]
    """Node and rack of each. A component without a node is its own node. Without a rack, the
    nearest component above it that is no node, such as a cage or a switch, or else ""."""
    kind: str
    gpus: tuple[int, ...]
    """GPUs of each; 0 if unknown."""
    rows: Mapping[str, tuple[int, ...]] = field(repr=False)
    labels: Labels = NO_LABELS
    """Extra columns of the topology, number of GPUs, and the components above it other than node
    and rack, by kind."""

    def rows_of(self, component: str) -> tuple[int, ...]:
        """Return the rows that an event of ``component`` affects; () if it is unknown.

        Its own row; or the watched components above it, such as the node of a GPU; or all watched
        components below it, such as the nodes of a rack or those with NICs on a switch.
        """
        return self.rows.get(component, ())


def watch(bundle: Bundle) -> Watched:
    """Return the watched components: nodes, else the most frequent kind, else all that is named."""
    return bundle.once("watch", _watched)


def _watched(bundle: Bundle) -> Watched:
    topology = bundle.topology()
    if not topology:
        return _named(bundle)
    tree = _Tree(topology)
    kind = _watched_kind(bundle, tree)
    ids = tuple(sorted(part.id for part in topology if part.kind == kind))
    row_of = {name: row for row, name in enumerate(ids)}
    racks = tuple(tree.group(name, kind) for name in ids)
    gpus = tuple(tree.gpus(name) for name in ids)
    return Watched(
        ids=ids,
        node=tuple(tree.first_above(name, _NODE) or name for name in ids),
        rack=racks,
        kind=kind,
        gpus=gpus,
        rows={name: tree.touched(name, row_of) for name in tree.parts},
        labels=labels_from(
            [
                tree.labels(name, kind, rack, count)
                for name, rack, count in zip(ids, racks, gpus, strict=True)
            ]
        ),
    )


def _named(bundle: Bundle) -> Watched:
    names = {event.component for event in bundle.events()}
    names.update(action.component for action in bundle.actions())
    names.update(place.component for place in bundle.placement())
    ids = tuple(sorted(names.union(bundle.measured)))
    return Watched(
        ids=ids,
        node=ids,
        rack=("",) * len(ids),
        kind=_NODE,
        gpus=(0,) * len(ids),
        rows={name: (row,) for row, name in enumerate(ids)},
    )


def _watched_kind(bundle: Bundle, tree: "_Tree") -> str:
    kinds = {part.kind for part in tree.parts.values()}
    if _NODE in kinds or len(kinds) == 1:
        return _NODE if _NODE in kinds else kinds.pop()
    about = {event.component for event in bundle.events()}.union(bundle.measured)
    named = Counter(tree.parts[name].kind for name in about if name in tree.parts)
    counts = named or Counter(part.kind for part in tree.parts.values())
    return min(counts, key=lambda kind: (-counts[kind], kind))


class _Tree:
    """The components with parents and children; cycles are allowed."""

    def __init__(self, topology: Iterable[Component]) -> None:
        self.parts = {part.id: part for part in topology}
        self._parents = {name: part.parents for name, part in self.parts.items()}
        self._children: dict[str, list[str]] = {}
        for part in self.parts.values():
            for parent in part.parents:
                self._children.setdefault(parent, []).append(part.id)

    def first_above(self, name: str, kind: str) -> str:
        """Return the nearest component of a kind, ``name`` or above it; "" if there is none."""
        return next((other for other in self._up(name) if self.parts[other].kind == kind), "")

    def group(self, name: str, kind: str) -> str:
        """Return the rack, or else the nearest component above of another kind, no node; or ""."""
        others = (other for other in self._up(name) if self.parts[other].kind not in (kind, _NODE))
        return self.first_above(name, "rack") or next(others, "")

    def labels(self, name: str, kind: str, group: str, gpus: int) -> dict[str, Any]:
        """Return the labels of a component of that kind, in that group."""
        above = {
            part.kind: part.id
            for part in map(self.parts.__getitem__, reversed(self._up(name)))
            if part.kind not in (kind, _NODE) and part.id != group
        }
        return {**above, **({"gpus": gpus} if gpus else {}), **self.parts[name].extra}

    def gpus(self, name: str) -> int:
        """Return the GPUs that a component lists, or else the number below it."""
        below = sum(self.parts[other].kind == "gpu" for other in self._down(name))
        return self.parts[name].gpus or below

    def touched(self, name: str, row_of: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sorted watched rows that an event of ``name`` affects."""
        if name in row_of:
            return (row_of[name],)
        above = {row_of[other] for other in self._up(name) if other in row_of}
        if above:
            return tuple(sorted(above))
        below = {
            row_of[other]
            for part in self._down(name)
            for other in (part, *self._parents[part])
            if other in row_of
        }
        return tuple(sorted(below))

    def _up(self, name: str) -> list[str]:
        return self._reach(name, self._parents)

    def _down(self, name: str) -> list[str]:
        return self._reach(name, self._children)

    def _reach(self, name: str, links: Mapping[str, Iterable[str]]) -> list[str]:
        """Return ``name`` and all components reachable from it, the nearest first."""
        if not links.get(name):
            return [name]
        found = {name: None}
        queue = [name]
        for current in queue:
            for other in links.get(current, ()):
                if other in self.parts and other not in found:
                    found[other] = None
                    queue.append(other)
        return queue
