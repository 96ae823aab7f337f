"""Draw the faults of a synthetic trace and their precursors in telemetry."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from torchloom_core.lab.trace.bundle.schema import Event, Follows
from torchloom_core.lab.trace.synthetic.parameters import (
    DAY_S,
    START_NS,
    Parameters,
    feed_name,
    generator,
    gpu_name,
    nic_name,
    node_name,
    switch_name,
)

TEMPERATURE, POWER, ECC, NIC = range(4)
"""Columns of the metrics in :mod:`~torchloom_core.lab.trace.synthetic.trace`."""

ALL_NODES = -1

_FABRIC_MEAN_S = 120.0
_JOB_RESTART_S = 300.0
_NOTICED_S = (5.0, 60.0)


class Kind(NamedTuple):
    """A kind of component fault, and the metrics that may show a precursor."""

    kind: str
    code: str
    weight: float
    signs: tuple[int, ...] = ()


OFF_BUS = Kind("gpu_off_bus", "xid 79", 74.0)
KINDS = (
    OFF_BUS,
    Kind("gpu_fault", "xid 119", 91.0, (TEMPERATURE, POWER)),
    Kind("gpu_ecc", "xid 48", 91.0, (ECC,)),
    Kind("host", "", 32.0),
    Kind("nic", "", 7.0, (NIC,)),
    Kind("thermal", "", 6.0, (TEMPERATURE,)),
)
"""Weights: interruptions of Llama 3 405B (Dubey et al., 2024, table 5). That half of its "faulty
GPU" fell off the bus is an assumption."""

_SIGNS = tuple(kind.signs for kind in KINDS if kind.signs)


class Sign(NamedTuple):
    """A rise in metrics of a node: a precursor of a fault, or a false sign."""

    node: int
    metrics: tuple[int, ...]
    from_ns: int
    until_ns: int


class Silence(NamedTuple):
    """A gap in the telemetry of a node, or of its GPUs only."""

    node: int
    from_ns: int
    until_ns: int
    gpus_only: bool = False


class Faults(NamedTuple):
    """Faults, signs and gaps; events are sorted by time and numbered."""

    events: list[Event]
    signs: list[Sign]
    silences: list[Silence]


def draw_faults(parameters: Parameters) -> Faults:
    """Draw all faults, signs and gaps of a trace from its seed."""
    drawing = _Drawing(parameters)
    nodes = range(parameters.nodes)
    racks = [parameters.rack_of(node) for node in nodes]
    for feed in range(parameters.feed_count):
        on_it = [node for node in nodes if racks[node] // parameters.racks_per_feed == feed]
        drawing.shared(on_it, feed_name(feed), "power", parameters.power_per_feed_day)
    for rack in range(parameters.rack_count):
        on_it = [node for node in nodes if racks[node] == rack]
        drawing.shared(on_it, switch_name(rack), "switch", parameters.switch_per_rack_day)
    shared = list(drawing.silences)
    for node, per_day in zip(nodes, _rates_per_day(parameters), strict=True):
        if per_day:
            drawing.node(node, per_day, [silence for silence in shared if silence.node == node])
    drawing.fabric_and_job()
    drawing.false_signs_and_gaps()
    # Events that become known after the end are not part of the trace.
    events = [event for event in drawing.events if event.t_avail <= parameters.end_ns]
    events.sort(key=lambda event: (event.t_event, event.component))
    events = [replace(event, id=f"e{at:06d}") for at, event in enumerate(events, start=1)]
    return Faults(events, drawing.signs, drawing.silences)


def _rates_per_day(parameters: Parameters) -> list[float]:
    """Return the fault rate of each node: higher for lemons, with the configured mean."""
    lemons = round(parameters.lemon_share * parameters.nodes)
    order = generator(parameters.seed, "lemons").permutation(parameters.nodes)
    times = np.ones(parameters.nodes)
    times[order[:lemons]] = parameters.lemon_factor
    rates: list[float] = (parameters.faults_per_node_day * times / times.mean()).tolist()
    return rates


class _Drawing:
    """Events, signs and silences drawn so far; each process has a generator of its own."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.events: list[Event] = []
        self.signs: list[Sign] = []
        self.silences: list[Silence] = []

    def shared(self, nodes: Sequence[int], component: str, kind: str, per_day: float) -> None:
        """Draw the faults of a power feed or a switch, which take down all nodes on it."""
        random = self._generator(component)
        for at_ns in self._times(random, per_day):
            until_ns = at_ns + self._repair_ns(random)
            follows: Follows = "component" if kind == "power" else "fabric"
            self._event(random, at_ns, component, kind, until_ns, follows=follows)
            self.silences.extend(Silence(node, at_ns, until_ns) for node in nodes)

    def node(self, node: int, per_day: float, outages: Sequence[Silence]) -> None:
        """Draw the faults of a node's own components: a renewal process, Weibull intervals."""
        random, shape = self._generator(node_name(node)), self._parameters.weibull_shape
        scale_s = DAY_S / per_day / math.gamma(1 + 1 / shape)
        weights = np.array([kind.weight for kind in KINDS])
        at_ns = START_NS
        while True:
            at_ns += _nanoseconds(scale_s * random.weibull(shape))
            if at_ns >= self._parameters.end_ns:
                return
            outage = next((o for o in outages if o.from_ns <= at_ns < o.until_ns), None)
            if outage is not None:
                at_ns = outage.until_ns
                continue
            kind = KINDS[random.choice(len(KINDS), p=weights / weights.sum())]
            gpu = int(random.integers(self._parameters.gpus_per_node))
            until_ns = at_ns + self._repair_ns(random)
            component = _component_of(kind, node, gpu)
            self._event(random, at_ns, component, kind.kind, until_ns, code=kind.code)
            self.silences.append(Silence(node, at_ns, until_ns))
            self._precursor(random, kind, node, at_ns)
            at_ns = until_ns

    def _precursor(self, random: np.random.Generator, kind: Kind, node: int, at_ns: int) -> None:
        parameters, sigma = self._parameters, self._parameters.lead_sigma
        if kind is OFF_BUS:
            lead_ns = _lognormal_ns(random, parameters.vanish_median_s, sigma)
            self.silences.append(Silence(node, at_ns - lead_ns, at_ns, gpus_only=True))
        elif kind.signs and random.random() < parameters.precursor_share:
            lead_ns = _lognormal_ns(random, parameters.lead_median_s, sigma)
            self.signs.append(Sign(node, kind.signs, at_ns - lead_ns, at_ns))

    def fabric_and_job(self) -> None:
        """Draw faults that take no node away: of a rack's links, and of the job itself."""
        parameters = self._parameters
        for rack in range(parameters.rack_count):
            random, switch = self._generator(f"fabric/{rack}"), switch_name(rack)
            for at_ns in self._times(random, parameters.fabric_per_rack_day):
                until_ns = at_ns + _nanoseconds(random.exponential(_FABRIC_MEAN_S))
                self._event(random, at_ns, switch, "link", until_ns, follows="fabric")
        random = self._generator("job")
        for at_ns in self._times(
            random, parameters.job_faults_per_day * bool(parameters.job_nodes)
        ):
            name = node_name(int(random.integers(len(parameters.job_nodes))))
            until_ns = at_ns + _nanoseconds(_JOB_RESTART_S)
            self._event(random, at_ns, name, "software", until_ns, follows="job")

    def false_signs_and_gaps(self) -> None:
        """Draw signs that no fault follows, and gaps in the telemetry."""
        parameters, random = self._parameters, self._generator("false signs")
        for at_ns in self._times(random, parameters.false_signs_per_node_day * parameters.nodes):
            node = int(random.integers(parameters.nodes))
            metrics = _SIGNS[random.integers(len(_SIGNS))]
            lead_ns = _lognormal_ns(random, parameters.lead_median_s, parameters.lead_sigma)
            self.signs.append(Sign(node, metrics, at_ns - lead_ns, at_ns))
        random, mean_s = self._generator("gaps"), parameters.gap_mean_s
        for at_ns in self._times(random, parameters.gaps_per_node_day * parameters.nodes):
            node = int(random.integers(parameters.nodes))
            until_ns = at_ns + _nanoseconds(random.exponential(mean_s))
            self.silences.append(Silence(node, at_ns, until_ns))
        for at_ns in self._times(random, parameters.scraper_gaps_per_day):
            until_ns = at_ns + _nanoseconds(random.exponential(mean_s))
            self.silences.append(Silence(ALL_NODES, at_ns, until_ns))

    def _event(
        self,
        random: np.random.Generator,
        at_ns: int,
        component: str,
        kind: str,
        until_ns: int,
        *,
        code: str = "",
        follows: Follows = "component",
    ) -> None:
        noticed_ns = at_ns + _nanoseconds(random.uniform(*_NOTICED_S))
        event = Event(
            id="",
            t_event=at_ns,
            t_avail=noticed_ns,
            component=component,
            kind=kind,
            code=code,
            follows=follows,
            t_resolved=until_ns if until_ns <= self._parameters.end_ns else None,
        )
        self.events.append(event)

    def _generator(self, name: str) -> np.random.Generator:
        return generator(self._parameters.seed, name)

    def _times(self, random: np.random.Generator, per_day: float) -> list[int]:
        """Return the times of a Poisson process over the trace, sorted."""
        count = random.poisson(per_day * self._parameters.days)
        span_ns = self._parameters.end_ns - START_NS
        times: list[int] = np.sort(START_NS + random.integers(span_ns, size=count)).tolist()
        return times

    def _repair_ns(self, random: np.random.Generator) -> int:
        parameters = self._parameters
        return _lognormal_ns(random, parameters.repair_median_s, parameters.repair_sigma)


def _component_of(kind: Kind, node: int, gpu: int) -> str:
    if kind.kind.startswith("gpu"):
        return gpu_name(node, gpu)
    return nic_name(node) if kind.kind == "nic" else node_name(node)


def _lognormal_ns(random: np.random.Generator, median_s: float, sigma: float) -> int:
    return _nanoseconds(median_s * math.exp(sigma * random.standard_normal()))


def _nanoseconds(seconds: float) -> int:
    # Digits below a microsecond are noise.
    return round(seconds * 1e6) * 1000
