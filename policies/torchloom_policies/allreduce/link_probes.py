"""Choose the links to probe next, keep the results, and verify them by the steps that follow.

Cores may be slower than the links, or probes may use another network than the allreduce.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchloom_core.plugin import Floats, Links
from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import StepSample

_LONGEST_REST = 16.0
_LONGEST_STABLE = 4.0
_LONGEST_PROBE_S = 3.0
_MANY_LOST = 4
_MOST_ROUNDS = 3
"""Rounds in which all links of a ring can be probed."""
_CHANGED = math.log(1.5)
SAME_S = 1e-3
"""Times closer than this belong to the same measurement."""

Pairs = tuple[tuple[int, int], ...]
Bools = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
_TIMES = 2.0
"""A probed bandwidth this many times the estimate is verified by the next steps."""
_STEPS = 20
"""Steps after a probe that may verify it; later the bandwidth may have changed."""
_VOTES, _CLEAR_TIMES = 3, 5.0
"""Steps whose median decides; a single step decides if it is this many times slower."""
_LEAST_SHARE = 0.1
_DOUBLES_S, _LONGEST_S = 60.0, 3600.0
"""Doubling time of a ceiling: the link may have been slow by chance. It doubles each time."""


class ProbeSchedule:
    """Rounds of disjoint pairs, one round at a time.

    The bandwidth is measured by rounds of the ring's own links, in turn: all of them at once after
    the links changed, and less often while they stay the same. All pairs are measured by the
    rounds of a tournament. Two rounds are at least ``every_s`` apart; that is doubled after each
    round without results, and after several ``trouble`` is the alert text. Measurements from
    before ``since_s``, when the links last changed, are outdated.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.proposed_s = -math.inf
        self._pairs: Pairs = ()
        self._left = 0
        self._turn = 0
        self._rest = 1.0
        self.since_s = -math.inf
        self._lost = 0
        self.trouble = ""

    @property
    def is_sweeping(self) -> bool:
        """Whether links of the ring remain to be probed at once."""
        return self._left > 0

    def is_due(self, links: Links, now_s: float) -> bool:
        """Return whether it is time for another round."""
        waited_s = now_s - self.proposed_s
        if self.is_sweeping:
            return self._answered(links, now_s) or waited_s >= _LONGEST_PROBE_S
        return waited_s >= self._every_s * self._rest

    def next_round(self, links: Links, ring: Sequence[int], *, of_ring: bool) -> Pairs:
        """Return the next round of the links along ``ring``, or of those measured longest ago."""
        if of_ring:
            rounds = ring_rounds(ring)
            self._turn = (self._turn + 1) % len(rounds)
            self._left = min(max(0, self._left - 1), len(rounds))
            return rounds[self._turn]
        age_s = np.nan_to_num(links.age_s, nan=math.inf)
        return max(tournament(len(ring)), key=lambda p: max(float(age_s[pair]) for pair in p))

    def hurry(self, since_s: float) -> None:
        """Probe all of the ring's links at once: they changed at ``since_s``."""
        if self.proposed_s < since_s:
            self.proposed_s, self._pairs = -math.inf, ()
        self._left, self._rest, self.since_s = _MOST_ROUNDS, 1.0, since_s

    def rest(self) -> None:
        """Record that the links are unchanged: the next round may come later."""
        self._rest = max(self._rest, min(2 * self._rest, _LONGEST_STABLE))

    def proposed(self, pairs: Pairs, links: Links, now_s: float) -> None:
        """Record a proposed round; a round without results delays the next one."""
        lost = bool(self._pairs) and not self._answered(links, now_s)
        self._lost = self._lost + 1 if lost else 0
        if self._lost >= _MANY_LOST:
            self.trouble = (
                f"{_MANY_LOST} rounds of link probes had no result: see "
                "torchloom trajectory show --kind outcome"
            )
        self._rest = (
            min(2 * self._rest, _LONGEST_REST) if lost else min(self._rest, _LONGEST_STABLE)
        )
        self._pairs, self.proposed_s = pairs, now_s

    def _answered(self, links: Links, now_s: float) -> bool:
        """Return whether any link of the last round was measured since its proposal."""
        return any(
            links.age_s[pair] <= now_s - self.proposed_s
            for pair in self._pairs
            if max(pair) < len(links.age_s)
        )


class ProbedLinks:
    """The last two measurements of each link; the faster counts.

    Interference makes a probe slower, never faster.
    """

    def __init__(self) -> None:
        self._groups: tuple[str, ...] = ()
        self._newest: Floats = np.zeros((0, 0))
        self._earlier: Floats = np.zeros((0, 0))
        self._at_s: Floats = np.zeros((0, 0))
        self._since: Bools = np.zeros((0, 0), dtype=bool)

    @property
    def bytes_per_s(self) -> Floats:
        """Bandwidths, from row to column; NaN where not measured since the last change."""
        return np.where(self._since, np.fmax(self._newest, self._earlier), math.nan)

    def was_measured_twice(self, link: tuple[int, int]) -> bool:
        """Return whether the link was measured twice since the last change."""
        return bool(self._since[link]) and not math.isnan(self._earlier[link])

    def take(self, groups: tuple[str, ...], links: Links, now_s: float) -> float | None:
        """Take new measurements; return since when the links differ, if all of them do."""
        if self._groups != groups:
            self._groups = groups
            self._newest = np.full_like(links.bytes_per_s, math.nan)
            self._earlier, self._at_s = self._newest.copy(), np.full_like(self._newest, -math.inf)
            self._since = np.zeros(self._newest.shape, dtype=bool)
        at_s = now_s - links.age_s
        new = (links.bytes_per_s > 0) & (at_s > self._at_s + SAME_S)
        measured = links.bytes_per_s[new]
        # Measurements from before the last change are not comparable.
        again = self._since[new]
        times = np.abs(np.log(measured[again] / self._newest[new][again]))
        changed = len(times) > 0 and bool((times > _CHANGED).all())
        if changed:
            self.forget()
        self._earlier[new] = np.where(self._since[new], self._newest[new], math.nan)
        self._newest[new], self._since[new], self._at_s[new] = measured, True, at_s[new]
        return float(at_s[new].min()) if changed else None

    def forget(self) -> None:
        """Record that the links have changed."""
        self._since[:] = False


def ring_rounds(ring: Sequence[int]) -> list[Pairs]:
    """Return the links of a ring in rounds of disjoint pairs."""
    n = len(ring)
    if n < 2:
        return []
    links = [(ring[i], ring[(i + 1) % n]) for i in range(n)]
    last = [] if n % 2 == 0 else [(links[-1],)]
    even = links[: n - n % 2]
    return [tuple(even[0::2]), tuple(even[1::2]), *last]


def tournament(n: int) -> list[Pairs]:
    """Return all pairs both ways in rounds of disjoint pairs, by the circle method."""
    odd = n % 2
    places = list(range(n + odd))
    rounds: list[Pairs] = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        pairs = sorted((min(pair), max(pair)) for pair in facing if max(pair) < n)
        rounds.append(tuple(pairs))
        places = [places[0], places[-1], *places[1:-1]]
    return rounds + [tuple((b, a) for a, b in pairs) for pairs in rounds]


@dataclass
class _Claim:
    """A probed bandwidth and the estimate before it, at ``step``; ``last_step`` may verify it.

    ``shown`` has the bandwidth of each step that decides, inf if the step agrees with the probe.
    """

    proposed_s: float
    probed: float
    before: float
    latency_s: Mapping[str, float]
    step: int
    last_step: int
    shown: list[float] = field(default_factory=list)


class Ceiling:
    """Verifies a probed bandwidth by the next steps whose time depends on it.

    ``trouble`` is the alert text once two rounds of probes measured more than steps show.
    """

    def __init__(self) -> None:
        self._claim: _Claim | None = None
        self._wrong_s: float | None = None
        self._shown, self._shown_s = math.inf, 0.0
        self._doubles_s = _DOUBLES_S / 2
        self.trouble = ""

    def below(self, probed: float, known: float, now_s: float) -> float:
        """Return a probed bandwidth, limited to what an allreduce may reach, at least ``known``."""
        most = self._shown * 2.0 ** min((now_s - self._shown_s) / self._doubles_s, 60.0)
        return min(probed, max(most, known)) if known > 0 else probed

    def probed(
        self,
        proposed_s: float,
        before: float,
        now: float,
        latency_s: Mapping[str, float],
        step: int,
    ) -> None:
        """Take the bandwidth before and after a round of probes, and each mode's latency."""
        if now >= _TIMES * before:
            self._claim = _Claim(proposed_s, now, before, latency_s, step, step + _STEPS)
        elif self._claim is not None:
            self._claim.last_step = step + _STEPS

    def shown_by(self, sample: StepSample) -> float | None:
        """Return the bandwidth that steps show, if it refutes the probes."""
        claim = self._claim
        if claim is None or not sample.shows_wire or not sample.fills_links:
            return None
        if sample.step <= claim.step + 1:  # it began before the probes
            return None
        if sample.step > claim.last_step:
            self._claim = None
            return None
        hops = prior_of(sample.mode).hops(sample.ranks, sample.reductions)
        rest_s = hops * claim.latency_s[sample.mode]
        probed_s = sample.sent_bytes / claim.probed + rest_s
        before_s = sample.sent_bytes / claim.before + rest_s
        if before_s < _TIMES * probed_s:  # the step is compatible with both
            return None
        nearer = abs(math.log(sample.wire_s / before_s)) < math.log(sample.wire_s / probed_s)
        refutes = nearer and sample.wire_s >= _TIMES * probed_s
        carried_s = max(sample.wire_s - rest_s, _LEAST_SHARE * sample.wire_s)
        claim.shown.append(sample.sent_bytes / carried_s if refutes else math.inf)
        is_clear = refutes and sample.wire_s >= _CLEAR_TIMES * probed_s
        if len(claim.shown) < _VOTES and not is_clear:
            return None
        self._claim = None
        shown = claim.shown[-1] if is_clear else statistics.median(claim.shown)
        return None if math.isinf(shown) else self._lower(claim, shown, sample.now_s)

    def _lower(self, claim: _Claim, shown: float, now_s: float) -> float:
        self._shown, self._shown_s = shown, now_s
        # The results of one round arrive separately and count once.
        if self._wrong_s != claim.proposed_s:
            self._doubles_s = min(2 * self._doubles_s, _LONGEST_S)
            if self._wrong_s is not None and not self.trouble:
                self.trouble = (
                    f"probes measured more than the {8e-6 * shown:.3g} Mbit/s of the allreduce "
                    "twice and have little weight from now on. Unless slow cores are the cause, "
                    "set TORCHLOOM_LINK_ADDRESS to the network of the allreduce"
                )
        self._wrong_s = claim.proposed_s
        return shown
