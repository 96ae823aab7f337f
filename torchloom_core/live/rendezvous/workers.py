"""The connected workers, and which of them have a part in a generation."""

from torchloom_core.live.rendezvous.known_worker import KnownWorker
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join, Stopped


class Workers(dict[str, KnownWorker]):
    """The connected workers by name; ``present`` is the present generation's assignment."""

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
        """Return the reports of the members that have left the generation."""
        found = ((name, self[name].stopped) for name in self.members(present))
        return {name: report for name, report in found if report is not None}

    def silent_since(self, since_s: float) -> list[str]:
        """Return those that have sent nothing since then."""
        return [name for name, known in self.items() if known.seen_s < since_s]

    def wake(self, now_s: float) -> None:
        """Count silence from now on."""
        for known in self.values():
            known.seen_s = now_s

    def begin(self, chosen: Assignment) -> None:
        """Give the workers their parts in the next generation."""
        for name, known in self.items():
            known.stopped = None
            known.generation = chosen.generation if name in chosen.workers else 0

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
