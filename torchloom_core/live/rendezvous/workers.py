"""The connected workers, and which of them have a part in a generation."""

from collections.abc import Iterable

from torchloom_core.live.rendezvous.holdings import Holdings
from torchloom_core.live.rendezvous.known_worker import KnownWorker
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join, Stopped


class Workers(dict[str, KnownWorker]):
    """The connected workers by name; ``present`` is the present generation's assignment."""

    _began_at: int | None = None
    _again = 0
    """Generations in a row without a committed step: each takes the next worker's store."""

    def is_member(self, worker: str, present: Assignment | None) -> bool:
        """Return whether a worker is connected and has a part."""
        known = self.get(worker)
        return known is not None and present is not None and known.generation == present.generation

    def members(self, present: Assignment | None) -> tuple[str, ...]:
        """Return those that have a part."""
        names = present.workers if present else ()
        return tuple(name for name in names if self.is_member(name, present))

    def standbys(self, present: Assignment | None) -> tuple[str, ...]:
        """Return those that have no part."""
        members = set(self.members(present))
        return tuple(name for name in self if name not in members)

    def not_stopped(self, present: Assignment | None) -> list[str]:
        """Return the members that have neither left the generation nor finished."""
        workers = ((name, self[name]) for name in self.members(present))
        return [name for name, w in workers if w.stopped is None and not w.has_finished]

    def reports(self, present: Assignment | None) -> dict[str, Stopped]:
        """Return the reports of the members that have left the generation.

        Also what those without a part keep, if no step was committed since. Nothing if there is no
        member: then nobody knows which step was the last.
        """
        members = ((name, self[name].stopped) for name in self.members(present))
        found = {name: report for name, report in members if report is not None}
        committed = max((report.committed for report in found.values()), default=None)
        spares = ((name, self[name].spare) for name in self.standbys(present))
        more = {name: s for name, s in spares if s is not None and s.committed == committed}
        return found | more

    def silent_since(self, since_s: float) -> list[str]:
        """Return those that have sent nothing since then."""
        return [name for name, known in self.items() if known.seen_s < since_s]

    def wake(self, now_s: float) -> None:
        """Count silence from now on."""
        for known in self.values():
            known.seen_s = now_s

    def store_for(self, chosen: Assignment, committed: int) -> str:
        """Return the address of one member's store, another one where the last did not help."""
        self._again = self._again + 1 if self._began_at == committed else 0
        self._began_at = committed
        there = [name for name in chosen.workers if name in self]
        return self[there[self._again % len(there)]].join.store

    def knobs_of(self, names: Iterable[str]) -> str:
        """Return the worker of these whose knobs were last known to be those of all; "" if none."""
        found = {name: self[name].stopped or self[name].spare for name in names if name in self}
        latest = {name: report.knobs_as_of for name, report in found.items() if report is not None}
        return max(latest, key=latest.__getitem__, default="")

    def begin(self, chosen: Assignment, has: Holdings) -> None:
        """Give the workers their parts in the next generation.

        One without a part keeps its layers, as others may not have their copies yet; with experts
        it does not: then each replica's worker has all layers.
        """
        for name, known in self.items():
            has_part = name in chosen.workers
            report, layers = known.stopped or known.spare, has.layers.get(name)
            known.spare = known.stopped = None
            known.generation = chosen.generation if has_part else 0
            if report is not None and layers and not has_part and not chosen.experts:
                known.spare = Stopped(
                    generation=report.generation,
                    committed=has.committed,
                    layers=tuple(sorted(layers)),
                    knobs_as_of=report.knobs_as_of,
                )

    @property
    def unfinished(self) -> list[str]:
        """Those that have not done all steps."""
        return [name for name, known in self.items() if not known.has_finished]

    @property
    def committed(self) -> int:
        """The last step that any has committed, as of its last heartbeat; -1 for none."""
        return max((known.committed for known in self.values()), default=-1)

    @property
    def first_join(self) -> Join | None:
        """The message of the one that has joined first."""
        return next((known.join for known in self.values()), None)

    @property
    def nodes(self) -> dict[str, str]:
        """The nodes of the workers that have named one."""
        return {name: known.join.node for name, known in self.items() if known.join.node}
