"""The rules for rows of a bundle; :mod:`validate` and the importers check row by row.

A fault is one line, "need ..., was ..."; the caller adds file and row.
"""

from collections.abc import Iterable, Iterator, Set
from graphlib import CycleError, TopologicalSorter

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.plain_text import printable
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import (
    ActionTaken,
    Component,
    Event,
    Job,
    Placement,
    Row,
)


class Rules:
    """Checks each row by itself and against the rows checked before it.

    Parameters
    ----------
    start_ns, end_ns : int
        The span of the trace.
    components, jobs : set of str, optional
        Their ids; None where the bundle does not list them.
    """

    def __init__(
        self,
        start_ns: int,
        end_ns: int,
        *,
        components: Set[str] | None = None,
        jobs: Set[str] | None = None,
    ) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._components = components
        self._jobs = jobs
        self._ids: dict[type[Row], set[str]] = {}
        self._newest: dict[type[Row], int] = {}
        self._sits: dict[tuple[str, str, int], list[tuple[int, int | None]]] = {}

    def faults(self, row: Row) -> Iterator[str]:
        """Yield the faults of a row; pass rows in the order of the file."""
        if not isinstance(row, Placement):
            yield from self._id(row)
        match row:
            case Component():
                yield from _order("until_ns", row.until_ns, "from_ns", row.from_ns)
            case Event():
                yield from self._moment(row)
                yield from _order("t_resolved", row.t_resolved, "t_event", row.t_event)
            case ActionTaken():
                yield from self._moment(row)
                yield from _order("t_end", row.t_end, "t_event", row.t_event)
            case Job():
                yield from _order("end_ns", row.end_ns, "start_ns", row.start_ns)
                yield from _job_sizes(row)
            case Placement():
                yield from self._component(row.component)
                if self._jobs is not None and row.job not in self._jobs:
                    yield f"need a job of jobs.jsonl, was {row.job!r}"
                yield from _order("until_ns", row.until_ns, "from_ns", row.from_ns)
                yield from self._place(row)

    def _id(self, row: Component | Job | Event | ActionTaken) -> Iterator[str]:
        ids = self._ids.setdefault(type(row), set())
        if row.id in ids:
            yield f"need a unique id, was {shown(row.id)} again"
        ids.add(row.id)

    def _moment(self, row: Event | ActionTaken) -> Iterator[str]:
        yield from self._component(row.component)
        for name, ts_ns in (("t_event", row.t_event), ("t_avail", row.t_avail)):
            if not self._start_ns <= ts_ns <= self._end_ns:
                yield (
                    f"need {name} in the span {moment_text(self._start_ns)} to "
                    f"{moment_text(self._end_ns)}, was {moment_text(ts_ns)}"
                )
        yield from _order("t_avail", row.t_avail, "t_event", row.t_event)
        newest = self._newest.setdefault(type(row), row.t_event)
        if row.t_event < newest:
            yield (
                f"need t_event >= {moment_text(newest)} of an earlier row, was "
                f"{moment_text(row.t_event)}"
            )
        self._newest[type(row)] = max(newest, row.t_event)

    def _component(self, name: str) -> Iterator[str]:
        if self._components is not None and name not in self._components:
            yield f"need a component of the topology, was {shown(name)}"

    def _place(self, row: Placement) -> Iterator[str]:
        spans = self._sits.setdefault((row.job, row.group, row.rank), [])
        for from_ns, until_ns in spans:
            if _before(row.from_ns, until_ns) and _before(from_ns, row.until_ns):
                yield (
                    f"need one placement at a time for rank {row.rank} of group {row.group!r} of "
                    f"job {row.job!r}, was a second one from {moment_text(from_ns)}"
                )
                break
        spans.append((row.from_ns, row.until_ns))


def parent_faults(parts: Iterable[Component]) -> Iterator[tuple[int, str]]:
    """Yield ``(index, fault)`` for missing parents and for the first cycle of parents.

    A missing parent is one fault, at the first component that names it.
    """
    listed = list(parts)
    index_of = {part.id: index for index, part in enumerate(listed)}
    missing: dict[str, list[int]] = {}
    for index, part in enumerate(listed):
        for parent in dict.fromkeys(part.parents):
            if parent not in index_of:
                missing.setdefault(parent, []).append(index)
    for parent, indices in missing.items():
        named = f", named by {len(indices)} components" if len(indices) > 1 else ""
        yield (
            indices[0],
            f"need parents of the topology, was {parent!r}{named}; add a row for it, with its "
            f"kind: rack, node, switch",
        )
    try:
        TopologicalSorter({part.id: part.parents for part in listed}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        shown = " > ".join(map(printable, circle))
        yield index_of[circle[0]], f"need parents without a cycle, was {shown}"


def _order(late: str, late_ns: int | None, early: str, early_ns: int | None) -> Iterator[str]:
    if late_ns is not None and early_ns is not None and late_ns < early_ns:
        yield f"need {late} >= {early} {moment_text(early_ns)}, was {moment_text(late_ns)}"


def _before(ts_ns: int, until_ns: int | None) -> bool:
    return until_ns is None or ts_ns < until_ns


def _job_sizes(job: Job) -> Iterator[str]:
    for name in ("groups", "nodes_per_group", "gpus_per_node"):
        if (size := getattr(job, name)) < 1:
            yield f"need {name} >= 1, was {size}"
    for name in ("step_s", "checkpoint_s", "restart_s"):
        if not getattr(job, name) >= 0:
            yield f"need {name} >= 0, was {getattr(job, name):g}"
