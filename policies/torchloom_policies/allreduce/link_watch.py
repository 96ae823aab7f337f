"""Learn from probed links, propose probes, and a better order of the ring."""

import math
from collections.abc import Iterator

import numpy as np

from torchloom_core.plugin import FleetView, Floats, Links, ProbeLinks, Proposal
from torchloom_policies.allreduce.cost import CostModel, StepCost
from torchloom_policies.allreduce.link_probes import SAME_S, Ceiling, ProbedLinks, ProbeSchedule
from torchloom_policies.allreduce.modes import AllreduceTunerOptions, prior_of
from torchloom_policies.allreduce.ring_order import RingAdvice
from torchloom_policies.allreduce.settings import Candidate
from torchloom_policies.allreduce.step_samples import StepSample
from torchloom_policies.allreduce.tuned_run import RING, TunedRun, listed

_LEAST_LOG_SD = 0.1
_UNSURE_LOG_SD = 0.35
_OLD_S = 600.0
_LEAST_PROBE_BYTES, _PROBE_S = 640 * 1024, 0.04
"""Minimum bytes of a probe that shows a bandwidth, and the time that bounds its size."""
_OTHERS_LOG_SD = 0.5
"""Uncertainty due to links of the ring that were not probed recently and may be slower."""
_MOST, _LEAST_S = 1e13, 1e-9
_CHANGED = math.log(1.5)
_LEAST_RING_GAIN = 1.25
"""Required speedup of the slowest link by another ring, given the precision of probes."""
_MOST_GROUPS = 256
"""More groups have too many links to examine at every tick, or to probe in time."""


class LinkWatch:
    """Evaluates probed links, and proposes probes and ring orders.

    ``trouble`` is why links are not probed, or the ring's order is not tuned, or empty.
    """

    def __init__(self, options: AllreduceTunerOptions, model: CostModel) -> None:
        self._options, self._model = options, model
        self._advice = RingAdvice(options.ring)
        self._schedule = ProbeSchedule(options.probe_every_s)
        self._probed = ProbedLinks()
        self._ceiling = Ceiling()
        self._seen_s, self._before = -math.inf, math.nan
        self._needs_recheck = False
        self._without_probe_address = self.trouble = ""

    def look(self, view: FleetView, run: TunedRun) -> bool:
        """Take the slowest recently probed link; return whether the bandwidth has jumped."""
        self.trouble = self._advice.trouble(list(run.groups)) if RING in run.settings else ""
        if len(run.groups) > _MOST_GROUPS:
            self.trouble = (
                f"the links are not probed: need at most {_MOST_GROUPS} groups to probe and order "
                f"them, was {len(run.groups)}"
            )
            return False
        self.trouble = self.trouble or self._ceiling.trouble or self._schedule.trouble
        self.trouble = self.trouble or self._without_probe_address
        links, edges = self._links(view, run), _edges(_ring(run))
        speeds = np.array([links.bytes_per_s[edge] for edge in edges])
        age_s = np.array([links.age_s[edge] for edge in edges])
        at_s = view.now_s - age_s
        since_s = self._probed.take(tuple(run.groups), links, view.now_s)
        if since_s is not None:
            self._schedule.hurry(since_s)
        new = (speeds > 0) & (at_s > self._seen_s + SAME_S)
        if not new.any():
            return False
        self._seen_s = float(at_s[new].max())
        if since_s is None:
            self._schedule.rest()
        fresh = (speeds > 0) & (at_s >= self._schedule.since_s)
        slowest = edges[int(np.where(fresh, speeds, math.inf).argmin())]
        spread = float(np.nan_to_num(links.spread[slowest]))
        latency = np.array([links.latency_s[edge] for edge in edges])
        if (latency > 0).all() and np.isfinite(latency).all():
            self._model.link.measure_latency(float(np.median(latency)))
        link, speed = self._model.link, float(links.bytes_per_s[slowest])
        self._before = link.bytes_per_s
        # Links that were not probed recently may be slower than this one; none makes it faster.
        others = _OTHERS_LOG_SD if self._before < speed and not fresh.all() else 0.0
        probed = self._ceiling.below(speed, self._before, view.now_s)
        # While steps show the bandwidth, the allreduce competes with a probe and slows it.
        was_hindered = link.known and not link.is_blind and probed < self._before
        log_sd = math.hypot(spread, _LEAST_LOG_SD, others)
        jumped = not was_hindered and link.measure_link(probed, log_sd)
        latency_s = {mode: link.latency_s(mode) for mode in self._model.modes}
        proposed_s = self._schedule.proposed_s
        self._ceiling.probed(proposed_s, self._before, link.bytes_per_s, latency_s, run.step)
        return jumped

    def check(self, sample: StepSample) -> bool:
        """Verify earlier probes by a step; return whether that changed the bandwidth."""
        shown = self._ceiling.shown_by(sample)
        return shown is not None and self._model.link.measure_link(shown, _LEAST_LOG_SD)

    def hurry(self, now_s: float) -> None:
        """Probe again at once: the links have changed."""
        self._schedule.hurry(now_s)
        self._probed.forget()

    def better_ring(self, run: TunedRun, view: FleetView) -> Candidate | None:
        """Return an order whose slowest link is faster, if the gain is large enough."""
        own = self._model.cost(run.mode)
        self._needs_recheck = False
        if RING not in run.settings or own is None or len(run.groups) > _MOST_GROUPS:
            return None
        groups, links, ring = list(run.groups), self._links(view, run), _ring(run)
        probed = self._probed.bytes_per_s
        if len(probed) != len(groups):
            return None
        found = self._advice.better(groups, ring, links._replace(bytes_per_s=probed))
        if found is None or found[1] <= _LEAST_RING_GAIN:
            return None
        best, times = found
        gain = _gain_of_ring(run.mode, own, times)
        if gain <= math.log1p(self._options.hysteresis):
            return None
        slowest = min(_edges(ring), key=lambda edge: float(probed[edge]))
        slower = math.log(self._before / float(probed[slowest])) > _CHANGED
        if slower and not self._probed.was_measured_twice(slowest):
            self._needs_recheck = True  # no step has shown it: a second probe may refute it
            return None
        proven = "" if best.proven else ", the best found in time"
        return Candidate(
            values={RING: ",".join(groups[place] for place in reversed(best.order))},
            purpose="better",
            gain=gain,
            confidence=0.8 if best.proven else 0.7,
            quality=0.0,
            why=f"another ring order makes the slowest link {times:.3g} times as fast{proven}",
        )

    def probes(
        self, view: FleetView, run: TunedRun, stake: float, wire_s: float
    ) -> Iterator[Proposal]:
        """Propose a round of probes if the bandwidth is uncertain and another mode may be better.

        ``stake`` is the logarithm of the gain of another mode at the most favourable plausible
        bandwidth, ``wire_s`` the measured wire time of the last step.
        """
        options, own = self._options, self._model.cost(run.mode)
        if not options.probe_every_s or own is None or len(run.groups) > _MOST_GROUPS:
            return
        link = self._model.link
        # The links may be faster than estimated; without this bound they would never be probed.
        least_share = math.exp(-link.log_sd) if link.is_blind else 1.0
        busy_s = min(own.carried_s * least_share, wire_s)
        if busy_s > options.probe_wire_share * own.step_s:
            return
        rows = list(run.groups.values())
        offers = view.can_be_probed[rows]
        links = self._links(view, run)
        unsure = link.log_sd > _UNSURE_LOG_SD and stake > 0
        for_ring = (
            RING in run.settings and self._advice.can_order(list(run.groups)) and offers.all()
        ) and _gain_of_ring(run.mode, own, math.inf) > math.log1p(options.hysteresis)
        beside = ~np.eye(len(rows), dtype=bool)
        fresh_s = min(_OLD_S, view.now_s - self._schedule.since_s)
        unknown = for_ring and not (links.age_s[beside] <= fresh_s).all()
        sweeping = self._schedule.is_sweeping and stake > 0
        of_ring = unsure or sweeping or self._needs_recheck
        if not (of_ring or unknown) or not self._schedule.is_due(links, view.now_s):
            return
        pairs = self._schedule.next_round(links, _ring(run), of_ring=of_ring)
        pairs = tuple(pair for pair in pairs if offers[list(pair)].all())
        if not pairs:
            lacking = [view.workers[row] for row in rows if not view.can_be_probed[row]]
            self._without_probe_address = (
                "the bandwidth is uncertain and the links cannot be probed: set "
                f"TORCHLOOM_LINK_ADDRESS also for {listed(lacking)}"
            )
            return
        self._schedule.proposed(pairs, links, view.now_s)
        gpus = view.costs.gpus_per_worker * len(run.rows)
        bandwidth = link.bytes_per_s
        probe_bytes = int(min(options.probe_bytes, max(_LEAST_PROBE_BYTES, bandwidth * _PROBE_S)))
        took_s = probe_bytes / bandwidth
        why = (
            f"the bandwidth is known to a factor of {math.exp(link.log_sd):.2g}, and "
            "another compression mode may be better"
            if unsure or not (unknown or self._needs_recheck)
            else "some links are unknown, and another ring order may be faster"
        )
        yield Proposal(
            action=ProbeLinks(
                pairs=tuple((view.workers[rows[a]], view.workers[rows[b]]) for a, b in pairs),
                probe_bytes=probe_bytes,
            ),
            reason=f"{why}; probe {len(pairs)} links with {probe_bytes} bytes each",
            gain_gpu_s=-math.expm1(-max(stake, 0.1)) * options.horizon_s * gpus,
            cost_gpu_s=min(took_s, own.step_s) * gpus * 0.1,
            confidence=0.2,
        )

    def _links(self, view: FleetView, run: TunedRun) -> Links:
        """Return the links among the groups; implausible values count as unknown."""
        links = view.links(list(run.groups.values()))
        speed = np.where(links.bytes_per_s <= 0, 0.0, _within(links.bytes_per_s, 1.0, _MOST))
        return Links(
            bytes_per_s=speed,
            latency_s=_within(links.latency_s, _LEAST_S, _OLD_S),
            age_s=_within(links.age_s, 0.0, _MOST),
            # A larger spread carries no more information.
            spread=np.minimum(np.where(links.spread >= 0.0, links.spread, math.nan), 1.0),
        )


def _gain_of_ring(mode: str, own: StepCost, times: float) -> float:
    """Return the gain in a step by links ``times`` as fast, as a logarithm."""
    carried_s = own.carried_s * prior_of(mode).ring_share
    saved_s = min(carried_s * (1.0 - 1.0 / times), own.exposed_s) / own.every
    return -math.log1p(-min(saved_s / own.step_s, 0.99))


def _within(values: Floats, low: float, high: float) -> Floats:
    return np.where((values >= low) & (values <= high), values, math.nan)


def _ring(run: TunedRun) -> list[int]:
    """Return the indices of the groups in the direction of the ring's data.

    In gloo each rank sends to the rank before it.
    """
    place = {name: at for at, name in enumerate(run.groups)}
    return [place[name] for name in reversed(run.ring)]


def _edges(ring: list[int]) -> list[tuple[int, int]]:
    """Return the ring's links as pairs of sender and receiver."""
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))
