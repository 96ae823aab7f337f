"""How long layers take, and which workers are slow, from what workers have measured."""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean

from torchloom_core.assignments.price import Program, program_of, step_s
from torchloom_core.live.rendezvous.step_times import StepTimes
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Beat, Join, Stopped

_ROUNDS = 20
_LEAST_S = 1e-9
_SLOW = 1.15
"""A worker that is less slow than this counts as any other: its times vary."""


class Times:
    """The seconds of layers by worker, and of steps; those of an ended worker stay known."""

    def __init__(self) -> None:
        self._measured: dict[str, tuple[float, ...]] = {}
        self._steps = StepTimes()
        self._fixed_s = 0.0

    def take(
        self, worker: str, message: Beat | Stopped, now_s: float, present: Assignment | None
    ) -> None:
        """Take what a worker has measured, and how far it is."""
        self._measured[worker] = updated(message.layer_s, self._measured.get(worker, ()))
        self._steps.take(worker, message.committed, now_s, present)

    def program(self, join: Join | None, present: Assignment | None) -> Program:
        """Return what is known of a program; nothing without one."""
        if join is None:
            return Program((), ())
        program = program_of(join, *speeds(self._measured, join.layers))
        if not program.is_measured:
            return program
        if present is not None and (took_s := self._steps.of(present)):
            self._fixed_s = max(took_s - step_s(present, program), 0.0)
        return program._replace(fixed_s=self._fixed_s)

    def forget(self) -> None:
        """Forget all: another program begins."""
        self._measured, self._steps, self._fixed_s = {}, StepTimes(), 0.0


def updated(measured: Sequence[float], known: tuple[float, ...]) -> tuple[float, ...]:
    """Return a worker's seconds of each layer; 0 where it has never measured one."""
    if not known:
        return tuple(measured)
    if len(measured) != len(known):
        return known
    return tuple(new or old for new, old in zip(measured, known, strict=True))


def speeds(
    measured: Mapping[str, Sequence[float]], layers: int
) -> tuple[tuple[float, ...], dict[str, float]]:
    """Return the seconds of each layer on a usual worker, and the slowness of slow workers.

    A time is taken as that of the layer times the worker's slowness. Workers are compared by the
    layers that both have measured; the fastest of those that can be compared is a usual one.

    Parameters
    ----------
    measured
        By worker, seconds of each layer, ``(layers,)``, 0 where it has measured none.

    Returns
    -------
    layer_s : tuple of float, (layers,)
        0 where nobody has measured one.
    slowness : dict of str to float
        Of workers that are slow.
    """
    times = {
        name: {n: log(max(s, _LEAST_S)) for n, s in enumerate(seconds[:layers]) if s > 0}
        for name, seconds in measured.items()
    }
    times = {name: own for name, own in times.items() if own}
    slow = dict.fromkeys(times, 0.0)
    layer: dict[int, float] = {}
    for _ in range(_ROUNDS):
        found: dict[int, list[float]] = {}
        for name, own in times.items():
            for number, value in own.items():
                found.setdefault(number, []).append(value - slow[name])
        layer = {number: fmean(values) for number, values in found.items()}
        slow = {n: fmean(v - layer[k] for k, v in own.items()) for n, own in times.items()}
    for group in _comparable(times):
        least = min(slow[name] for name in group)
        for number in {number for name in group for number in times[name]}:
            layer[number] += least
        for name in group:
            slow[name] -= least
    slowness = {name: exp(value) for name, value in slow.items() if exp(value) > _SLOW}
    return tuple(exp(layer[n]) if n in layer else 0.0 for n in range(layers)), slowness


def _comparable(times: Mapping[str, Mapping[int, float]]) -> list[set[str]]:
    """Return the groups of workers that share layers, directly or by others."""
    groups: list[tuple[set[str], set[int]]] = []
    for name, own in times.items():
        names, layers = {name}, set(own)
        apart = []
        for group in groups:
            if group[1] & layers:
                names |= group[0]
                layers |= group[1]
            else:
                apart.append(group)
        groups = [*apart, (names, layers)]
    return [names for names, _ in groups]
