"""What each knob is for all workers at once; the fleet state keeps it."""

from collections.abc import Iterable, Sequence

from torchloom_core.errors import KnobError
from torchloom_core.suggest import listed
from torchloom_core.wire.knobs import agrees, takes
from torchloom_core.wire.messages import Hello, KnobSpec, KnobValues

_NAMED = 3
"""How many workers a message names."""


class DeclaredKnobs:
    """Counts how many workers declare each knob how.

    A knob is for all what most of them declare it to be, of as many the one declared first.
    """

    def __init__(self) -> None:
        self._declared: dict[str, dict[tuple[object, ...], tuple[int, KnobSpec]]] = {}
        self._specs: dict[str, KnobSpec] | None = None

    def add(self, knobs: Iterable[KnobSpec]) -> None:
        """Count what a worker declares."""
        self._count(knobs, 1)

    def remove(self, knobs: Iterable[KnobSpec]) -> None:
        """Count no more what a worker declared."""
        self._count(knobs, -1)

    @property
    def specs(self) -> dict[str, KnobSpec]:
        """Every knob by its name, in a dict of the caller's own."""
        if self._specs is None:
            self._specs = {
                name: max(ways.values(), key=lambda way: way[0])[1]
                for name, ways in self._declared.items()
            }
        return self._specs.copy()

    def by_use(self) -> list[KnobSpec]:
        """Return every knob: what most workers declare first, of as many what was declared first.

        Where not all can be told, no worker's own crowd out those of the run.
        """
        workers = {
            name: sum(count for count, _ in ways.values()) for name, ways in self._declared.items()
        }
        return sorted(self.specs.values(), key=lambda spec: -workers[spec.name])

    def _count(self, knobs: Iterable[KnobSpec], more: int) -> None:
        self._specs = None
        for spec in {spec.name: spec for spec in knobs}.values():
            ways, way = self._declared.setdefault(spec.name, {}), takes(spec)
            count, first = ways.get(way, (0, spec))
            ways[way] = count + more, first
            if not count + more:
                del ways[way]
            if not ways:
                del self._declared[spec.name]


def check_all_have(spec: KnobSpec, hellos: Sequence[Hello]) -> None:
    """Check that all of these workers declare a run-fenced knob alike.

    Raises
    ------
    KnobError
        If one has it not, or declares it otherwise.
    """
    without = [h.worker for h in hellos if all(own.name != spec.name for own in h.knobs)]
    otherwise = [h.worker for h in hellos if not agrees(h.knobs, spec)]
    if without:
        has = "has" if len(without) == 1 else "have"
        raise KnobError(
            f"knob {spec.name} lands on all ranks at one step, "
            f"and {listed(without, _NAMED)} {has} none"
        )
    if otherwise:
        declares = "declares" if len(otherwise) == 1 else "declare"
        raise KnobError(
            f"knob {spec.name} lands on all ranks at one step, "
            f"and {listed(otherwise, _NAMED)} {declares} it otherwise"
        )


def left_out(spec: KnobSpec | None, hellos: Iterable[Hello]) -> str:
    """Return a clause that names the workers which declare the knob otherwise, or nothing."""
    names = [hello.worker for hello in hellos if spec and not agrees(hello.knobs, spec)]
    if not names:
        return ""
    whose = "declares" if len(names) == 1 else "declare"
    return f"not on {listed(names, _NAMED)}, which {whose} it otherwise"


def first_values(knobs: Iterable[str], present: Iterable[KnobValues]) -> KnobValues:
    """Return what the knobs are on the first worker that has them: on all the same."""
    values: KnobValues = {}
    for own in present:
        values = {**own, **values}
    return {knob: values[knob] for knob in knobs if knob in values}
