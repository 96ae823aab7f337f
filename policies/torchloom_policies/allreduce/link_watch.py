"""Learn from probed links, propose probes, and a better order of the ring."""

import math
from collections.abc import Iterator

import numpy as np

from torchloom_core.plugin import FleetView, Floats, Links, ProbeLinks, Proposal
from torchloom_policies.allreduce.ceiling import Ceiling
from torchloom_policies.allreduce.cost import CostModel, StepCost
from torchloom_policies.allreduce.link_probes import ProbeSchedule
from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.options import AllreduceTunerOptions
from torchloom_policies.allreduce.probed_links import SAME_S, ProbedLinks
from torchloom_policies.allreduce.ring_advice import RingAdvice
from torchloom_policies.allreduce.settings import Wish
from torchloom_policies.allreduce.step_samples import StepSample
from torchloom_policies.allreduce.tuned_run import RING, TunedRun

_LEAST_LOG_SD = 0.1
_UNSURE_LOG_SD = 0.35
_OLD_S = 600.0
_LEAST_PROBE_BYTES, _PROBE_S = 640 * 1024, 0.04
"""A probe sends no more than what takes so long, and no less than what tells anything."""
_OTHERS_LOG_SD = 0.5
"""By how much links of the ring that were not probed lately may be slower."""
_MOST, _LEAST_S = 1e13, 1e-9
_CHANGED = math.log(1.5)
_LEAST_RING_GAIN = 1.25
"""So many times as fast the slowest link must be in another ring: probes are not that exact."""
_MOST_GROUPS = 256
"""Beyond, all links among them are more than can be looked at every tick, or probed in time."""


class LinkWatch:
    """What the links tell, and what there is to ask of them.

    Attributes
    ----------
    trouble : str
        Why links are not probed, or the ring's order is not tuned, or nothing.
    """

    def __init__(self, options: AllreduceTunerOptions, model: CostModel) -> None:
        self._options, self._model = options, model
        self._advice = RingAdvice(options.ring)
        self._schedule = ProbeSchedule(options.probe_every_s)
        self._probed = ProbedLinks()
        self._ceiling = Ceiling()
        self._seen_s, self._before = -math.inf, math.nan
        self._is_in_doubt = False
        self._without_probe_address = self.trouble = ""

    def look(self, view: FleetView, run: TunedRun) -> bool:
        """Take the slowest link of the ring that was probed lately; say whether it has jumped."""
        self.trouble = self._advice.trouble(list(run.groups)) if RING in run.settings else ""
        if len(run.groups) > _MOST_GROUPS:
            self.trouble = (
                f"the links are left alone: need at most {_MOST_GROUPS} groups to probe and order "
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
            self._model.link.measure_latency(float(np.median(latency)), 1.0)
        # Links that were not probed lately may be slower than this one, but none makes it faster.
        slower = self._model.link.bytes_per_s < float(links.bytes_per_s[slowest])
        others = _OTHERS_LOG_SD if slower and not fresh.all() else 0.0
        link = self._model.link
        self._before = link.bytes_per_s
        told = self._ceiling.below(float(links.bytes_per_s[slowest]), self._before, view.now_s)
        # While steps tell of the bandwidth, the allreduce itself is in a probe's way.
        was_hindered = link.known and not link.is_blind and told < self._before
        sure = math.hypot(spread, _LEAST_LOG_SD, others)
        jumped = not was_hindered and link.measure_link(told, sure)
        latency_s = {mode: link.latency_s(mode) for mode in self._model.modes}
        asked_s = self._schedule.asked_s
        self._ceiling.probed(asked_s, self._before, link.bytes_per_s, latency_s, run.step)
        return jumped

    def check(self, sample: StepSample) -> bool:
        """Hold a step against what probes told before it; say whether that was wrong."""
        shown = self._ceiling.shown_by(sample)
        return shown is not None and self._model.link.measure_link(shown, _LEAST_LOG_SD)

    def hurry(self, now_s: float) -> None:
        """Ask again at once: the links are others than they were."""
        self._schedule.hurry(now_s)
        self._probed.forget()

    def better_ring(self, run: TunedRun, view: FleetView) -> Wish | None:
        """Return an order whose slowest link is faster, if that is worth something."""
        own = self._model.cost(run.mode)
        self._is_in_doubt = False
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
        if slower and not self._probed.was_asked_twice(slowest):
            self._is_in_doubt = True  # no step has shown it: asked again, it may be as quick
            return None
        proven = "" if best.proven else ", the best found in time"
        return Wish(
            values={RING: ",".join(groups[place] for place in reversed(best.order))},
            purpose="better",
            gain=gain,
            confidence=0.8 if best.proven else 0.7,
            quality=0.0,
            why=f"the slowest link of the ring would be {times:.3g} times as fast{proven}",
        )

    def probes(
        self, view: FleetView, run: TunedRun, stake: float, wire_s: float
    ) -> Iterator[Proposal]:
        """Propose a round of probes where the bandwidth is unsure and that could matter.

        Parameters
        ----------
        stake : float
            The logarithm of what another mode would gain at a bandwidth as far off as it may be.
        wire_s : float
            What the last step was measured to be on the wire.
        """
        options, own = self._options, self._model.cost(run.mode)
        if not options.probe_every_s or own is None or len(run.groups) > _MOST_GROUPS:
            return
        if self._busy_s(own.carried_s, wire_s) > options.probe_wire_share * own.step_s:
            return
        rows = list(run.groups.values())
        offers = view.can_be_probed[rows]
        links = self._links(view, run)
        unsure = self._model.link.log_sd > _UNSURE_LOG_SD and stake > 0
        for_ring = (
            RING in run.settings and self._advice.can_order(list(run.groups)) and offers.all()
        ) and _gain_of_ring(run.mode, own, math.inf) > math.log1p(options.hysteresis)
        beside = ~np.eye(len(rows), dtype=bool)
        fresh_s = min(_OLD_S, view.now_s - self._schedule.since_s)
        unknown = for_ring and not (links.age_s[beside] <= fresh_s).all()
        sweeping = self._schedule.is_sweeping and stake > 0
        of_ring = unsure or sweeping or self._is_in_doubt
        if not (of_ring or unknown) or not self._schedule.is_due(links, view.now_s):
            return
        pairs = self._schedule.next_round(links, _ring(run), of_ring=of_ring)
        pairs = tuple(pair for pair in pairs if offers[list(pair)].all())
        if not pairs:
            lacking = [view.workers[row] for row in rows if not view.can_be_probed[row]]
            self._without_probe_address = _without_probe_address(lacking)
            return
        self._schedule.asked(pairs, links, view.now_s)
        gpus = view.costs.gpus_per_worker * len(run.rows)
        bandwidth = self._model.link.bytes_per_s
        probe_bytes = int(min(options.probe_bytes, max(_LEAST_PROBE_BYTES, bandwidth * _PROBE_S)))
        took_s = probe_bytes / bandwidth
        why = (
            f"the bandwidth is known to a factor of {math.exp(self._model.link.log_sd):.2g}, and "
            "another compression mode may be better at what it is"
            if unsure or not (unknown or self._is_in_doubt)
            else "not all links are known, and another order of the ring may be faster"
        )
        yield Proposal(
            action=ProbeLinks(
                pairs=tuple((view.workers[rows[a]], view.workers[rows[b]]) for a, b in pairs),
                probe_bytes=probe_bytes,
            ),
            reason=f"{why}; {len(pairs)} links are probed with {probe_bytes} bytes each",
            gain_gpu_s=-math.expm1(-max(stake, 0.1)) * options.horizon_s * gpus,
            cost_gpu_s=min(took_s, own.step_s) * gpus * 0.1,
            confidence=0.2,
        )

    def _busy_s(self, carried_s: float, wire_s: float) -> float:
        """Return how long a step's bytes keep the links busy at least.

        They may be faster than is known of them: who held them for busy then would never ask,
        unless steps tell.
        """
        link = self._model.link
        return min(carried_s * (math.exp(-link.log_sd) if link.is_blind else 1.0), wire_s)

    def _links(self, view: FleetView, run: TunedRun) -> Links:
        """Return the links among the groups; what makes no sense counts as unknown."""
        links = view.links(list(run.groups.values()))
        speed = np.where(links.bytes_per_s <= 0, 0.0, _within(links.bytes_per_s, 1.0, _MOST))
        return Links(
            bytes_per_s=speed,
            latency_s=_within(links.latency_s, _LEAST_S, _OLD_S),
            age_s=_within(links.age_s, 0.0, _MOST),
            # Bursts that differ by more than that tell no more than nothing.
            spread=np.minimum(np.where(links.spread >= 0.0, links.spread, math.nan), 1.0),
        )


def _gain_of_ring(mode: str, own: StepCost, times: float) -> float:
    """Return what links so many times as fast gain in a step, as a logarithm."""
    carried_s = own.carried_s * prior_of(mode).ring_share
    saved_s = min(carried_s * (1.0 - 1.0 / times), own.exposed_s) / own.every
    return -math.log1p(-min(saved_s / own.step_s, 0.99))


def _without_probe_address(workers: list[str]) -> str:
    more = f" and {len(workers) - 3} more" if workers[3:] else ""
    return (
        "the bandwidth is not known well and the links are not probed: need "
        f"TORCHLOOM_LINK_ADDRESS at all workers, not at {', '.join(workers[:3])}{more}"
    )


def _within(values: Floats, low: float, high: float) -> Floats:
    return np.where((values >= low) & (values <= high), values, math.nan)


def _ring(run: TunedRun) -> list[int]:
    """Return the places of the groups in the order in which the ring's data goes.

    In gloo's each rank sends to the one before it.
    """
    place = {name: at for at, name in enumerate(run.groups)}
    return [place[name] for name in reversed(run.ring)]


def _edges(ring: list[int]) -> list[tuple[int, int]]:
    """Return the ring's links, from whom to whom."""
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))
