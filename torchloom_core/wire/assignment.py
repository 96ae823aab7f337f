"""An assignment: which worker does which part of a program that is split over workers.

A program of ``layers`` layers has one or more *replicas*; each trains on its share of the global
batch. A replica's *route* lists the workers that compute it, each with its layers; a worker may be
in several routes, and then computes one after the other. So a worker that takes a lost stage, a
route with fewer stages, a peer that computes both replicas' stage, and a replica that another
worker's route computes in addition, are all assignments of the same form.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import Count, Name, ShortText

MAX_PARTS = 4096
"""Layers, experts, replicas, and workers of one assignment, at most, each."""

Part = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTS)]


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """A worker and its layers of one route: from ``first`` up to, not including, ``end``."""

    worker: Name
    first: Part
    end: Part

    @property
    def layers(self) -> range:
        """The layers' numbers."""
        return range(self.first, self.end)


Route = Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
Holders = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_PARTS)]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker computes which layers of which replica, and holds which experts.

    Attributes
    ----------
    generation : int
        A later assignment of the run has the larger number.
    layers : int
        How many layers the program has.
    routes : tuple of tuple of Stage, (replicas,)
        The stages of each replica, in the order of the layers.
    experts : tuple of tuple of str, (experts,)
        The workers that hold a copy of each expert; none: the router leaves the expert out.
    standbys : tuple of str
        Workers that hold nothing, and may take a part.
    why : str
        The reason for this assignment, for display.
    """

    generation: Count
    layers: Part
    routes: Annotated[tuple[Route, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    experts: Annotated[tuple[Holders, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    standbys: Holders = ()
    why: ShortText = ""

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that have a part, in the order of routes and experts."""
        names = [stage.worker for route in self.routes for stage in route]
        return tuple(dict.fromkeys([*names, *(name for held in self.experts for name in held)]))

    def holders(self, layer: int) -> tuple[str, ...]:
        """Return the workers that hold a layer, in the order of the replicas, each once."""
        return tuple(
            dict.fromkeys(
                stage.worker for route in self.routes for stage in route if layer in stage.layers
            )
        )

    def layers_of(self, worker: str) -> tuple[int, ...]:
        """Return the layers that a worker holds, in ascending order."""
        return self.layers_by_worker().get(worker, ())

    def layers_by_worker(self) -> dict[str, tuple[int, ...]]:
        """Return the layers that each worker holds, in ascending order."""
        found: dict[str, set[int]] = {name: set() for name in self.workers}
        for route in self.routes:
            for stage in route:
                found[stage.worker].update(stage.layers)
        return {name: tuple(sorted(layers)) for name, layers in found.items()}

    def experts_of(self, worker: str) -> tuple[int, ...]:
        """Return the experts that a worker holds, in ascending order."""
        return tuple(number for number, held in enumerate(self.experts) if worker in held)

    def experts_by_worker(self) -> dict[str, tuple[int, ...]]:
        """Return the experts that each worker holds, in ascending order."""
        found: dict[str, list[int]] = {name: [] for name in self.workers}
        for number, held in enumerate(self.experts):
            for name in held:
                found[name].append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def single_copies(self) -> tuple[int, ...]:
        """Return the layers that one worker alone holds: its death would lose them."""
        counts = [0] * self.layers
        for layers in self.layers_by_worker().values():
            for layer in layers:
                counts[layer] += 1
        return tuple(n for n, count in enumerate(counts) if count == 1)


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A layer that one worker sends to another before an assignment begins."""

    layer: Part
    source: Name
    target: Name
