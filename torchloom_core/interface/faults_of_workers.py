"""The faults of some workers of a run, for a view of a part of it."""

from collections.abc import Mapping, Sequence

from torchloom_core.wire.events import Fault


class FaultsOf:
    """The faults of some workers, and those of nodes; the same objects while nothing changes."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = {"", *workers}
        self._of: dict[str, tuple[Sequence[Fault], tuple[Fault, ...]]] = {}

    def all(self, faults: Sequence[Fault]) -> Sequence[Fault]:
        """Return those of the faults that are of the workers, or of a node."""
        return self._kept("", faults)

    def by_place(self, faults_of: Mapping[str, tuple[Fault, ...]]) -> dict[str, tuple[Fault, ...]]:
        """Return the same by place, without places that have none."""
        kept = {place: self._kept(place, faults) for place, faults in faults_of.items()}
        return {place: faults for place, faults in kept.items() if faults}

    def _kept(self, place: str, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        seen, kept = self._of.get(place, ((), ()))
        if seen is not faults:
            kept = tuple(fault for fault in faults if fault.worker in self._workers)
            self._of[place] = faults, kept
        return kept
