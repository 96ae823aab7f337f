"""Choose which links to probe next, so that no two probes share a worker."""

import math
from collections.abc import Sequence

import numpy as np

from torchloom_core.plugin import Links

_LONGEST_REST = 16.0
_LONGEST_CALM = 4.0
_LONGEST_PROBE_S = 3.0
_MANY_LOST = 4
_MOST_ROUNDS = 3
"""In which all links of a ring can be probed."""

Pairs = tuple[tuple[int, int], ...]


class ProbeSchedule:
    """Rounds of disjoint pairs, a round at a time.

    To know the bandwidth, the rounds of the ring's own links come in turn; all of them at once
    where the links are others than they were, ever more rarely where they stay as they are. To
    know all links, rounds of a tournament.

    Parameters
    ----------
    every_s : float
        How long one round at least follows another. Where nobody answers, twice as long each time.

    Attributes
    ----------
    asked_s : float
        When the last round was asked for.
    since_s : float
        What was measured before is of other links.
    trouble : str
        That several rounds, one after the other, came to nothing; or nothing.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.asked_s = -math.inf
        self._asked: Pairs = ()
        self._left = 0
        self._turn = 0
        self._rest = 1.0
        self.since_s = -math.inf
        self._lost = 0
        self.trouble = ""

    @property
    def is_sweeping(self) -> bool:
        """Whether some of the ring's links are to be asked about at once."""
        return self._left > 0

    def is_due(self, links: Links, now_s: float) -> bool:
        """Say whether it is time for another round."""
        waited_s = now_s - self.asked_s
        if self.is_sweeping:
            return self._answered(links, now_s) or waited_s >= _LONGEST_PROBE_S
        return waited_s >= self._every_s * self._rest

    def next_round(self, links: Links, ring: Sequence[int], *, of_ring: bool) -> Pairs:
        """Return the next round of the ring's links, or of those measured longest ago.

        Parameters
        ----------
        ring : sequence of int
            In which order the links' rows stand.
        """
        if of_ring:
            rounds = ring_rounds(ring)
            self._turn = (self._turn + 1) % len(rounds)
            self._left = min(max(0, self._left - 1), len(rounds))
            return rounds[self._turn]
        age_s = np.nan_to_num(links.age_s, nan=math.inf)
        return max(tournament(len(ring)), key=lambda p: max(float(age_s[pair]) for pair in p))

    def hurry(self, since_s: float) -> None:
        """Ask about all of the ring's links at once: they are others since then."""
        if self.asked_s < since_s:
            self.asked_s, self._asked = -math.inf, ()
        self._left, self._rest, self.since_s = _MOST_ROUNDS, 1.0, since_s

    def rest(self) -> None:
        """Note that the links are as they were: the next round may come later."""
        self._rest = max(self._rest, min(2 * self._rest, _LONGEST_CALM))

    def asked(self, pairs: Pairs, links: Links, now_s: float) -> None:
        """Note a round that is proposed; one that came to nothing makes the next come later."""
        lost = bool(self._asked) and not self._answered(links, now_s)
        self._lost = self._lost + 1 if lost else 0
        if self._lost >= _MANY_LOST:
            self.trouble = (
                f"{_MANY_LOST} rounds of probes of the links came to nothing: "
                "torchloom trajectory show --kind outcome says why"
            )
        self._rest = min(2 * self._rest, _LONGEST_REST) if lost else min(self._rest, _LONGEST_CALM)
        self._asked, self.asked_s = pairs, now_s

    def _answered(self, links: Links, now_s: float) -> bool:
        """Say whether any link of the last round was measured since it was asked for."""
        return any(
            links.age_s[pair] <= now_s - self.asked_s
            for pair in self._asked
            if max(pair) < len(links.age_s)
        )


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
