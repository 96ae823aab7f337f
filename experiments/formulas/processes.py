"""Failure processes with a seed, for tests, formulas and benchmarks."""

from collections.abc import Iterator, Sequence

import numpy as np

from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.scenario import Hit
from torchloom_core.lab.trace import Follows

_BLOCK = 1024


def poisson_hits(
    rng: np.random.Generator,
    mtbf_s: float,
    *,
    nodes: Sequence[str] = (),
    repair_s: float = 0.0,
    start_ns: int = 0,
    name: str = "poisson",
) -> Iterator[Hit]:
    """Yield hits without end, with exponential gaps of mean ``mtbf_s``.

    Parameters
    ----------
    nodes : sequence of str
        Each hit strikes one of them, all alike; empty: each is a fault of the job itself.
    repair_s : float
        How long a struck node is away.
    """
    ts_s, repair_ns, number = 0.0, to_ns(repair_s), 0
    follows: Follows = "component" if nodes else "job"
    while True:
        gaps = rng.exponential(mtbf_s, _BLOCK).tolist()
        places = rng.integers(max(1, len(nodes)), size=_BLOCK).tolist()
        for gap, place in zip(gaps, places, strict=True):
            ts_s += gap
            number += 1
            yield Hit(
                id=f"{name}-{number}",
                ts_ns=start_ns + to_ns(ts_s),
                nodes=(nodes[place],) if nodes else (),
                follows=follows,
                repair_ns=repair_ns,
            )


def periodic_hits(
    every_s: float, *, nodes: Sequence[str] = (), repair_s: float = 0.0, start_ns: int = 0
) -> Iterator[Hit]:
    """Yield a hit every ``every_s``, without end, on one node after the other.

    Without ``nodes`` each is a fault of the job itself.
    """
    every_ns, repair_ns = to_ns(every_s), to_ns(repair_s)
    number = 0
    while True:
        number += 1
        yield Hit(
            id=f"periodic-{number}",
            ts_ns=start_ns + number * every_ns,
            nodes=(nodes[number % len(nodes)],) if nodes else (),
            follows="component" if nodes else "job",
            repair_ns=repair_ns,
        )
