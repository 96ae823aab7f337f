"""The ways to lay a program out on a number of workers."""

from collections.abc import Sequence
from typing import NamedTuple

from torchloom_core.assignments.answers import route_of
from torchloom_core.assignments.price import Program, bubble, step_s
from torchloom_core.wire.assignment import Assignment


class Layout(NamedTuple):
    """One way to lay a program out.

    Attributes
    ----------
    routes, stages : int
        How many routes, and workers in each; with fewer routes than replicas, a route computes
        several, one after the other.
    standbys : int
        The workers that are left.
    step_s : float
        Estimated time of a step.
    bubble : float
        Share of the workers' time in a step in which they wait.
    copies : int
        How many workers hold the layer that the fewest hold: with 1, a death may lose it.
    """

    routes: int
    stages: int
    standbys: int
    step_s: float
    bubble: float
    copies: int


def layouts(workers: int, program: Program, *, replicas: int) -> list[Layout]:
    """Return all layouts for so many workers, the fastest first.

    Of equally fast ones the one comes first that can lose more workers.
    """
    layers = len(program.layer_s)
    found = []
    for routes in range(1, min(replicas, workers) + 1):
        for stages in range(1, min(workers // routes, program.most_stages or layers) + 1):
            names = [[f"{n}.{m}" for m in range(stages)] for n in range(routes)]
            each = [route_of(group, program, {}) for group in names]
            assignment = Assignment(
                generation=1,
                layers=layers,
                routes=tuple(each[n % routes] for n in range(replicas)),
            )
            found.append(
                Layout(
                    routes,
                    stages,
                    workers - routes * stages,
                    step_s(assignment, program),
                    bubble(assignment, program),
                    routes,
                )
            )
    return sorted(found, key=lambda one: (round(one.step_s, 9), -one.copies, -one.standbys))


def why_best(found: Sequence[Layout], *, replicas: int) -> str:
    """Return in one sentence why the first layout is the one to use.

    Examples
    --------
    >>> fast = Layout(2, 2, 1, 0.4, 0.2, 2)
    >>> why_best([fast, Layout(1, 5, 0, 0.5, 0.5, 1)], replicas=2).split("; ")[1]
    '1 route of 5 stages takes 25% longer, and has one copy of each layer'
    """
    best = found[0]
    shared = f"{replicas} replicas take turns on {_counted(best.routes, 'route')}"
    reasons = ["each replica has a route of its own" if best.routes >= replicas else shared]
    other = next((one for one in found[1:] if one.routes != best.routes), None)
    if other is not None:
        layout = f"{_counted(other.routes, 'route')} of {_counted(other.stages, 'stage')}"
        longer = other.step_s / best.step_s - 1
        takes = f"takes {longer:.0%} longer" if longer >= 0.005 else "is as fast"
        risk = ", and has one copy of each layer" if other.copies < 2 <= best.copies else ""
        reasons.append(f"{layout} {takes}{risk}")
    elif best.standbys:
        reasons.append(f"more stages are not faster: {best.standbys} workers stand by")
    return "; ".join(reasons)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
