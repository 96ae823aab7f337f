"""Choose which links to probe next, so that no two probes share a worker."""

import math
from collections.abc import Sequence

import numpy as np

from torchloom_core.plugin import Links

_LONGEST_REST = 16.0

Pairs = tuple[tuple[int, int], ...]


class ProbeSchedule:
    """Rounds of disjoint pairs, a round at a time: the ring's own links first.

    Parameters
    ----------
    every_s : float
        How long one round at least follows another. Where nobody answers, twice as long each time.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._asked_s = -math.inf
        self._asked: Pairs = ()
        self._rest = 1.0

    def due(self, now_s: float) -> bool:
        """Say whether it is time for another round."""
        return now_s - self._asked_s >= self._every_s * self._rest

    def next_round(self, links: Links, ring: Sequence[int], all_pairs: bool) -> Pairs:
        """Return the round whose links were measured longest ago; empty where none is left.

        Parameters
        ----------
        ring : sequence of int
            In which order the links' rows stand.
        all_pairs : bool
            Whether links beside the ring's are wanted, too: a tournament of all against all.
        """
        age_s = np.nan_to_num(links.age_s, nan=math.inf)
        rounds = ring_rounds(ring)
        old = [
            (max(float(age_s[pair]) for pair in pairs), -place)
            for place, pairs in enumerate(rounds)
        ]
        if all_pairs and all(math.isfinite(age) for age, _ in old):
            rounds += tournament(len(ring))
            old += [
                (max(float(age_s[pair]) for pair in pairs), -place)
                for place, pairs in enumerate(rounds[len(old) :], len(old))
            ]
        return rounds[old.index(max(old))] if old else ()

    def asked(self, pairs: Pairs, links: Links, now_s: float) -> None:
        """Note a round that is proposed; one that came to nothing makes the next come later."""
        lost = bool(self._asked) and all(
            not links.age_s[pair] <= now_s - self._asked_s
            for pair in self._asked
            if max(pair) < len(links.age_s)
        )
        self._rest = min(2 * self._rest, _LONGEST_REST) if lost else 1.0
        self._asked, self._asked_s = pairs, now_s


def ring_rounds(ring: Sequence[int]) -> list[Pairs]:
    """Return the links of a ring in rounds in which nobody stands twice.

    Examples
    --------
    >>> ring_rounds([0, 2, 1, 3])
    [((0, 2), (1, 3)), ((2, 1), (3, 0))]
    """
    n = len(ring)
    if n < 2:
        return []
    links = [(ring[i], ring[(i + 1) % n]) for i in range(n)]
    last = [] if n % 2 == 0 else [(links[-1],)]
    even = links[: n - n % 2]
    return [tuple(even[0::2]), tuple(even[1::2]), *last]


def tournament(n: int) -> list[Pairs]:
    """Return all pairs both ways in rounds in which nobody stands twice: the circle method.

    Examples
    --------
    >>> tournament(3)
    [((1, 2),), ((0, 2),), ((0, 1),), ((2, 1),), ((2, 0),), ((1, 0),)]
    """
    odd = n % 2
    seats = list(range(n + odd))
    rounds: list[Pairs] = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairs = sorted((min(pair), max(pair)) for pair in facing if max(pair) < n)
        rounds.append(tuple(pairs))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds + [tuple((b, a) for a, b in pairs) for pairs in rounds]
