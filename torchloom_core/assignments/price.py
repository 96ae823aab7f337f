"""What an assignment costs: time per step, bytes to copy, and the stall as it begins."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from torchloom_core.assignments.checking import copies
from torchloom_core.assignments.schedule import schedule_s
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join


class Program(NamedTuple):
    """What is known of a program's layers.

    Attributes
    ----------
    layer_s : sequence of float, (layers,)
        Seconds of forward and backward of one micro-batch.
    layer_bytes : sequence of float, (layers,)
        Weights and optimizer state.
    micro_batches : int
        Of each replica and step.
    slowness : mapping of str to float
        By how much longer a layer takes on each worker; 1 where a worker is not named.
    is_measured : bool
        Whether the seconds are measured, or all layers are counted alike.
    most_stages : int
        Of a replica, at most; 0: one for each layer.
    fixed_s : float
        Seconds of a step beyond those of the layers: messages, reduction, votes, the script.
    """

    layer_s: Sequence[float]
    layer_bytes: Sequence[float]
    micro_batches: int = 4
    slowness: Mapping[str, float] = MappingProxyType({})
    is_measured: bool = True
    most_stages: int = 0
    fixed_s: float = 0.0


def program_of(
    join: Join,
    layer_s: Sequence[float],
    slowness: Mapping[str, float] = MappingProxyType({}),
    fixed_s: float = 0.0,
) -> Program:
    """Return a program's costs; one second for each layer until all have been measured."""
    is_known = len(layer_s) == join.layers and all(layer_s)
    return Program(
        layer_s=layer_s if is_known else (1.0,) * join.layers,
        layer_bytes=join.layer_bytes or (0,) * join.layers,
        micro_batches=join.micro_batches,
        slowness=slowness if is_known else {},
        is_measured=is_known,
        most_stages=1 if join.expert_layers else 0,
        fixed_s=fixed_s if is_known else 0.0,
    )


class Rates(NamedTuple):
    """What a change of assignment takes.

    Attributes
    ----------
    set_up_s : float
        Until the groups of a generation are formed.
    cold_s : float
        The first step of a process that has made none.
    bytes_per_s : float
        From a worker to another.
    horizon_s : float
        How long an assignment is expected to stay: until a lost machine is back.
    """

    set_up_s: float = 0.05
    cold_s: float = 0.35
    bytes_per_s: float = 200e6
    horizon_s: float = 300.0


class Price(NamedTuple):
    """What a change to an assignment costs.

    Attributes
    ----------
    step_s : float
        Estimated time of a step afterwards.
    bubble : float
        Share of the workers' time in a step in which they wait.
    copied_bytes : float
        Sent in total.
    stall_s : float
        From the last step before to the first one after it.
    lost_gpu_s : float
        Useful GPU-seconds lost by the stall, and by slower steps within the horizon; negative
        if faster steps gain more than the stall costs.
    """

    step_s: float
    bubble: float
    copied_bytes: float
    stall_s: float
    lost_gpu_s: float


RATES = Rates()
"""As measured on one machine with gloo over loopback."""


def step_s(assignment: Assignment, program: Program) -> float:
    """Estimate the time of a step: replicas that share a worker are computed one by one.

    What a step takes beyond its layers counts as the same for all assignments.
    """
    sums = [0.0, *accumulate(program.layer_s)]
    shares = _Shares()
    took_s: dict[int, float] = {}
    for number, route in enumerate(assignment.routes):
        stages = [
            (sums[stage.end] - sums[stage.first]) * program.slowness.get(stage.worker, 1.0)
            for stage in route
        ]
        took_s[number] = schedule_s(tuple(stages), program.micro_batches)
        shares.join(number, [stage.worker for stage in route])
    totals: dict[int, float] = {}
    for number, each_s in took_s.items():
        chain = shares.of(number)
        totals[chain] = totals.get(chain, 0.0) + each_s
    return max(totals.values()) + program.fixed_s


class _Shares:
    """Which routes share a worker, directly or by others."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._routes: dict[str, int] = {}

    def join(self, route: int, workers: Iterable[str]) -> None:
        self._parents[route] = route
        for worker in workers:
            other = self._routes.setdefault(worker, route)
            self._parents[self.of(other)] = self.of(route)

    def of(self, route: int) -> int:
        while (parent := self._parents[route]) != route:
            self._parents[route] = self._parents[parent]
            route = parent
        return route


def bubble(assignment: Assignment, program: Program) -> float:
    """Return the share of computing in which workers wait, of all workers with layers."""
    sums = [0.0, *accumulate(program.layer_s)]
    stages = [stage for route in assignment.routes for stage in route]
    work_s = program.micro_batches * sum(
        (sums[stage.end] - sums[stage.first]) * program.slowness.get(stage.worker, 1.0)
        for stage in stages
    )
    computing_s = step_s(assignment, program) - program.fixed_s
    available_s = computing_s * len({stage.worker for stage in stages})
    return max(1 - work_s / available_s, 0.0) if available_s else 0.0


def price(
    assignment: Assignment,
    program: Program,
    held: Mapping[str, frozenset[int]],
    *,
    usual_s: float,
    workers: int,
    rates: Rates = RATES,
) -> Price:
    """Price a change to an assignment.

    Parameters
    ----------
    held
        By worker, the layers that it holds now; a worker without any is cold.
    usual_s
        Time of a step before the change, as by :func:`step_s`.
    workers
        That could be of use: also those that the assignment leaves idle.

    Raises
    ------
    AssignmentError
        If nobody holds a layer.
    """
    sent = copies(assignment, held)
    into: dict[str, float] = {}
    for copy in sent:
        into[copy.target] = into.get(copy.target, 0.0) + program.layer_bytes[copy.layer]
    is_cold = any(not held.get(worker) for worker in assignment.workers)
    stall_s = (
        rates.set_up_s
        + max(into.values(), default=0.0) / rates.bytes_per_s
        + (rates.cold_s if is_cold else 0.0)
    )
    each_s = step_s(assignment, program)
    slower = 1 - usual_s / each_s if each_s else 0.0
    return Price(
        step_s=each_s,
        bubble=bubble(assignment, program),
        copied_bytes=sum(into.values()),
        stall_s=stall_s,
        lost_gpu_s=workers * (stall_s + rates.horizon_s * slower),
    )
