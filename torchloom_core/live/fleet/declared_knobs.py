"""The specs of knobs across all workers; part of the fleet state."""

from collections.abc import Iterable, Sequence

from torchloom_core.floor.errors import KnobError
from torchloom_core.floor.suggest import listed
from torchloom_core.wire.knobs import agrees, takes
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.messages import Hello, KnobSpec

_NAMED = 3
"""The most workers that a message names."""


class DeclaredKnobs:
    """Counts the specs that workers declare for each knob.

    The spec of a knob is the one that most workers declare; in a tie, the one declared first.
    """

    def __init__(self) -> None:
        self._declared: dict[str, dict[tuple[object, ...], tuple[int, KnobSpec]]] = {}
        self._specs: dict[str, KnobSpec] | None = None

    @property
    def specs(self) -> dict[str, KnobSpec]:
        """Every knob by its name, in a new dict."""
        if self._specs is None:
            self._specs = {
                name: max(ways.values(), key=lambda way: way[0])[1]
                for name, ways in self._declared.items()
            }
        return self._specs.copy()

    def by_use(self) -> list[KnobSpec]:
        """Return every knob, those declared by most workers first, in a tie the earliest.

        If the list is cut off, the knobs of single workers are dropped first.
        """
        workers = {
            name: sum(count for count, _ in ways.values()) for name, ways in self._declared.items()
        }
        return sorted(self.specs.values(), key=lambda spec: -workers[spec.name])

    def count(self, knobs: Iterable[KnobSpec], more: int) -> None:
        """Count the declarations of a worker: 1 more of each, or -1."""
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
    """Check that all of these workers declare a run-fenced knob with the same spec.

    Raises
    ------
    KnobError
        If a worker does not declare it, or with another spec.
    """
    without = [h.worker for h in hellos if all(own.name != spec.name for own in h.knobs)]
    otherwise = [h.worker for h in hellos if not agrees(h.knobs, spec)]
    if without:
        does = "does" if len(without) == 1 else "do"
        raise KnobError(
            f"knob {spec.name} has to change on all ranks at the same step, "
            f"but {listed(without, _NAMED)} {does} not have it"
        )
    if otherwise:
        declares = "declares" if len(otherwise) == 1 else "declare"
        raise KnobError(
            f"knob {spec.name} has to change on all ranks at the same step, "
            f"but {listed(otherwise, _NAMED)} {declares} it differently"
        )


def left_out(spec: KnobSpec | None, hellos: Iterable[Hello]) -> str:
    """Return a clause that names the workers which declare the knob differently, or ""."""
    names = [hello.worker for hello in hellos if spec and not agrees(hello.knobs, spec)]
    if not names:
        return ""
    declares = "declares" if len(names) == 1 else "declare"
    return f"not on {listed(names, _NAMED)}, which {declares} it differently"


def first_values(knobs: Iterable[str], present: Iterable[KnobValues]) -> KnobValues:
    """Return the values of knobs on the first worker that has each; they are equal on all."""
    values: KnobValues = {}
    for own in present:
        values = {**own, **values}
    return {knob: values[knob] for knob in knobs if knob in values}
