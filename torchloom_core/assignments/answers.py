"""The assignments that are possible after a loss, or once a worker has joined, cheapest first."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from torchloom_core.assignments.checking import check_assignment
from torchloom_core.assignments.expert_holders import first_holders
from torchloom_core.assignments.partition import divide
from torchloom_core.assignments.price import RATES, Price, Program, Rates, price, step_s
from torchloom_core.floor.errors import AssignmentError
from torchloom_core.wire.assignment import Assignment, Route, Stage
from torchloom_core.wire.generations import ExpertLayer

Held = Mapping[str, frozenset[int]]
"""By worker, the layers that it holds whole and of the same step."""


_MOST = 32
"""Combinations of answers for several replicas that are priced."""

_PEERS = 2
"""Replicas whose workers may compute a lost stage, or a lost replica, that are looked at."""


class Answer(NamedTuple):
    """An assignment that is possible, and its price."""

    assignment: Assignment
    price: Price


def first_assignment(
    workers: Sequence[str],
    program: Program,
    *,
    replicas: int,
    standbys: int = 0,
    expert_layers: Sequence[ExpertLayer] = (),
) -> Assignment:
    """Divide the program among workers: equally many for each replica, the others stand by.

    Raises
    ------
    AssignmentError
        If there are too few workers, or more than layers in a route.
    """
    layers = len(program.layer_s)
    stages = min((len(workers) - standbys) // replicas, program.most_stages or layers)
    if stages < 1:
        raise AssignmentError(
            f"need at least {replicas + standbys} workers for {replicas} replicas and "
            f"{standbys} standbys, were {len(workers)}"
        )
    routes = tuple(
        route_of(workers[n * stages : (n + 1) * stages], program, {}) for n in range(replicas)
    )
    taking_part = workers[: stages * replicas]
    return Assignment(
        generation=1,
        layers=layers,
        routes=routes,
        experts=first_holders(expert_layers, taking_part),
        standbys=tuple(workers[stages * replicas :]),
        why="first",
    )


def after_loss(
    present: Assignment,
    alive: Collection[str],
    held: Held,
    program: Program,
    rates: Rates = RATES,
) -> list[Answer]:
    """Return what can follow on the loss of workers, cheapest first; empty if a layer is lost.

    A replica whose route has lost workers continues with standbys in their places; with fewer
    stages; with a stage at the worker that computes the same layers for another replica; or on
    another replica's route. Or all workers are divided anew, for as many replicas at a time or for
    fewer: so there is an assignment as long as each layer is held.
    """
    usual_s = step_s(present, program)
    ready = [name for name in present.standbys if name in alive]
    standbys = tuple(sorted(ready, key=lambda name: not held.get(name)))  # first those with layers
    partial = [msgspec.structs.replace(present, standbys=standbys, why="")]
    for replica, route in enumerate(present.routes):
        if all(stage.worker in alive for stage in route):
            continue
        found = []
        for begun in partial:
            for changed, taken, how in _repaired(begun, replica, alive, held, program):
                routes = (*begun.routes[:replica], changed, *begun.routes[replica + 1 :])
                rest = tuple(name for name in begun.standbys if name not in taken)
                why = f"{begun.why}; {how}" if begun.why else how
                found.append(
                    msgspec.structs.replace(begun, routes=routes, standbys=rest, why=why[:256])
                )
        partial = found[:_MOST]
    partial += _anew(present, alive, held, program)
    return _priced(partial, alive, held, program, usual_s, rates)


def with_joiners(
    present: Assignment,
    alive: Collection[str],
    held: Held,
    program: Program,
    *,
    stages: int,
    rates: Rates = RATES,
) -> list[Answer]:
    """Return how standbys can take a part again, cheapest first; empty if none is needed.

    A standby takes a stage of a worker that computes for two replicas, or becomes one more stage
    of a replica with fewer than ``stages``. Where replicas share a route, all workers may be
    divided anew, among more routes.
    """
    usual_s = step_s(present, program)
    ready = [name for name in present.standbys if name in alive]
    found = [present] if ready else []
    for standby in ready:
        more = []
        for begun in found:
            for changed, how in _filled(begun, standby, held, program, stages):
                rest = tuple(name for name in begun.standbys if name != standby)
                more.append(msgspec.structs.replace(changed, standbys=rest, why=f"{standby} {how}"))
        found = more[:64] or found
    found = [one for one in found if one is not present]
    if ready and (routes := len(set(present.routes))) < len(present.routes):
        for one in _anew(present, alive, held, program):
            if len(set(one.routes)) > routes and len(one.routes[0]) <= stages:
                found.append(one)
    return _priced(found, alive, held, program, usual_s, rates)


def balanced(
    present: Assignment, held: Held, program: Program, rates: Rates = RATES
) -> list[Answer]:
    """Return the assignment with each route's layers divided anew by their measured times."""
    usual_s = step_s(present, program)
    routes = tuple(
        route_of([stage.worker for stage in route], program, held) for route in present.routes
    )
    if routes == present.routes:
        return []
    moved = msgspec.structs.replace(present, routes=routes, why="layers divided by measured times")
    return _priced([moved], moved.workers, held, program, usual_s, rates)


def _priced(
    found: Sequence[Assignment],
    alive: Collection[str],
    held: Held,
    program: Program,
    usual_s: float,
    rates: Rates,
) -> list[Answer]:
    known = {name: layers for name, layers in held.items() if name in alive}
    answers = []
    for one in {one.routes: one for one in reversed(found)}.values():
        later = msgspec.structs.replace(
            one,
            generation=one.generation + 1,
            experts=tuple(tuple(w for w in held_by if w in alive) for held_by in one.experts),
        )
        try:
            check_assignment(later)
            cost = price(later, program, known, usual_s=usual_s, workers=len(known), rates=rates)
            answers.append(Answer(later, cost))
        except AssignmentError:
            continue
    return sorted(answers, key=lambda answer: _rank(answer.price))


def _rank(price: Price) -> tuple[float, float, float]:
    return price.lost_gpu_s, price.stall_s, price.copied_bytes


def _repaired(
    present: Assignment, replica: int, alive: Collection[str], held: Held, program: Program
) -> Iterator[tuple[Route, tuple[str, ...], str]]:
    """Yield a replica's possible routes, the standbys that each takes, and how it is repaired."""
    route = present.routes[replica]
    lost = [stage for stage in route if stage.worker not in alive]
    standbys = present.standbys[: len(lost)]
    if len(standbys) == len(lost):
        takes = {stage: name for stage, name in zip(lost, standbys, strict=True)}
        changed = tuple(
            Stage(takes[stage], stage.first, stage.end) if stage in takes else stage
            for stage in route
        )
        names = ", ".join(f"{takes[stage]} for {stage.worker}" for stage in lost)
        yield changed, standbys, f"replica {replica}: {names}"
    left = [stage.worker for stage in route if stage.worker in alive]
    if left:
        changed = route_of(left, program, held)
        yield changed, (), f"replica {replica}: {len(left)} stages in place of {len(route)}"
    for other in _peers(present, replica, alive):
        peers = {
            (stage.first, stage.end): stage.worker
            for stage in present.routes[other]
            if stage.worker in alive
        }
        taken = [peers.get((stage.first, stage.end)) for stage in lost]
        if all(name is not None and name not in left for name in taken):
            by_stage = dict(zip(lost, taken, strict=True))
            changed = tuple(
                Stage(by_stage.get(stage) or stage.worker, stage.first, stage.end)
                for stage in route
            )
            yield changed, (), f"replica {replica}: its lost stage at replica {other}'s worker"
        if all(stage.worker in alive for stage in present.routes[other]):
            yield present.routes[other], (), f"replica {replica}: on replica {other}'s route"


def _peers(present: Assignment, replica: int, alive: Collection[str]) -> list[int]:
    """Return the replicas that could help best: the next ones, those without a loss first."""
    count = len(present.routes)
    others = [(replica + n) % count for n in range(1, count)]
    lost = {
        other: sum(stage.worker not in alive for stage in present.routes[other]) for other in others
    }
    return sorted(others, key=lambda other: lost[other])[:_PEERS]


def _filled(
    present: Assignment, standby: str, held: Held, program: Program, stages: int
) -> Iterator[tuple[Assignment, str]]:
    """Yield the assignments in which a standby has a part."""
    seen: set[str] = set()
    for replica, route in enumerate(present.routes):
        own = {stage.worker for stage in route}
        shared = [stage for stage in route if stage.worker in seen]
        seen |= own
        for stage in shared:
            changed = tuple(
                Stage(standby, one.first, one.end) if one is stage else one for one in route
            )
            how = f"takes layers {stage.first} to {stage.end - 1} of replica {replica}"
            yield _with_route(present, replica, changed), how
        if len(route) < min(stages, present.layers) and not shared:
            names = [stage.worker for stage in route]
            for place in range(len(names) + 1):
                changed = route_of([*names[:place], standby, *names[place:]], program, held)
                how = f"is stage {place} of replica {replica}"
                yield _with_route(present, replica, changed), how


def _anew(
    present: Assignment, alive: Collection[str], held: Held, program: Program
) -> list[Assignment]:
    """Return assignments with the living workers divided among all routes, or among fewer."""
    left = _needed_first([name for name in present.workers if name in alive], held)
    ready = [name for name in present.standbys if name in alive]
    found = []
    for names in (left, _needed_first([*left, *ready], held)) if ready else (left,):
        for count in _halved(min(len(present.routes), len(names))):
            stages = min(len(names) // count, program.most_stages or present.layers)
            groups = [names[n * stages : (n + 1) * stages] for n in range(count)]
            for group in groups:
                group.sort(key=lambda name: min(held.get(name) or (present.layers,)))
            routes = [route_of(group, program, held) for group in groups]
            taking_part = {name for group in groups for name in group}
            one = msgspec.structs.replace(
                present,
                routes=tuple(routes[n % count] for n in range(len(present.routes))),
                standbys=tuple(name for name in names if name not in taking_part),
                why=f"{stages} stages in each of {count} routes"
                if count > 1
                else f"one route, {stages} stages",
            )
            found.append(one)
    return found


def _halved(count: int) -> Iterator[int]:
    """Yield a number, its half, and so on to 1."""
    while count > 0:
        yield count
        count //= 2


def _needed_first(names: Sequence[str], held: Held) -> list[str]:
    """Put first those that together hold all layers: without them a copy has no source."""
    there: set[int] = set()
    needed = []
    for name in names:
        if not held.get(name, frozenset()) <= there:
            there |= held[name]
            needed.append(name)
    return [*needed, *(name for name in names if name not in needed)]


def _with_route(present: Assignment, replica: int, route: Route) -> Assignment:
    routes = (*present.routes[:replica], route, *present.routes[replica + 1 :])
    return msgspec.structs.replace(present, routes=routes)


def route_of(workers: Sequence[str], program: Program, held: Held) -> Route:
    """Divide all layers among workers, in this order."""
    holdings = [held.get(name, frozenset()) for name in workers]
    slowness = [program.slowness.get(name, 1.0) for name in workers]
    bounds = divide(program.layer_s, holdings, program.layer_bytes, slowness)
    return tuple(
        Stage(name, first, end)
        for name, first, end in zip(workers, bounds, bounds[1:], strict=False)
    )
