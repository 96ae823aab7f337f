"""Draw the faults of a synthetic trace and their precursors in telemetry."""

import math
from collections.abc import Iterator, Sequence
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
    drawn = Faults([], [], [])
    feed_of = [
        parameters.rack_of(node) // parameters.racks_per_feed for node in range(parameters.nodes)
    ]
    rack_of = [parameters.rack_of(node) for node in range(parameters.nodes)]
    for feed in range(parameters.feed_count):
        nodes = [node for node, its_feed in enumerate(feed_of) if its_feed == feed]
        _draw_shared(parameters, drawn, nodes, feed_name(feed), "power")
    for rack in range(parameters.rack_count):
        nodes = [node for node, its_rack in enumerate(rack_of) if its_rack == rack]
        _draw_shared(parameters, drawn, nodes, switch_name(rack), "switch")
    rates = _rates_per_day(parameters)
    shared = list(drawn.silences)
    for node in range(parameters.nodes):
        outages = [silence for silence in shared if silence.node == node]
        _draw_node(parameters, drawn, node, rates[node], outages)
    drawn.events.extend(_fabric_events(parameters))
    drawn.events.extend(_job_events(parameters))
    drawn.signs.extend(_false_signs(parameters))
    drawn.silences.extend(_gaps(parameters))
    # Events that become known after the end are not part of the trace.
    drawn_events = [event for event in drawn.events if event.t_avail <= parameters.end_ns]
    drawn_events.sort(key=lambda event: (event.t_event, event.component))
    events = [replace(event, id=f"e{at:06d}") for at, event in enumerate(drawn_events, start=1)]
    return Faults(events, drawn.signs, drawn.silences)


def _draw_shared(
    parameters: Parameters, drawn: Faults, nodes: Sequence[int], component: str, kind: str
) -> None:
    """Draw the faults of a power feed or a switch, which take down all nodes on it."""
    random = generator(parameters.seed, component)
    is_power = kind == "power"
    per_day = parameters.power_per_feed_day if is_power else parameters.switch_per_rack_day
    for at_ns in _times(random, per_day, parameters):
        until_ns = at_ns + _lognormal_ns(
            random, parameters.repair_median_s, parameters.repair_sigma
        )
        follows: Follows = "component" if is_power else "fabric"
        drawn.events.append(
            _event(parameters, random, at_ns, component, kind, until_ns, follows=follows)
        )
        drawn.silences.extend(Silence(node, at_ns, until_ns) for node in nodes)


def _rates_per_day(parameters: Parameters) -> list[float]:
    """Return the fault rate of each node: higher for lemons, with the configured mean."""
    lemons = round(parameters.lemon_share * parameters.nodes)
    order = generator(parameters.seed, "lemons").permutation(parameters.nodes)
    times = np.ones(parameters.nodes)
    times[order[:lemons]] = parameters.lemon_factor
    rates: list[float] = (parameters.faults_per_node_day * times / times.mean()).tolist()
    return rates


def _draw_node(
    parameters: Parameters, drawn: Faults, node: int, per_day: float, outages: Sequence[Silence]
) -> None:
    """Draw the faults of a node's own components: a renewal process with Weibull intervals."""
    if per_day == 0:
        return
    random = generator(parameters.seed, node_name(node))
    shape = parameters.weibull_shape
    scale_s = DAY_S / per_day / math.gamma(1 + 1 / shape)
    weights = np.array([kind.weight for kind in KINDS])
    at_ns = START_NS
    while True:
        at_ns += _nanoseconds(scale_s * random.weibull(shape))
        if at_ns >= parameters.end_ns:
            return
        outage = next((o for o in outages if o.from_ns <= at_ns < o.until_ns), None)
        if outage is not None:
            at_ns = outage.until_ns
            continue
        kind = KINDS[random.choice(len(KINDS), p=weights / weights.sum())]
        component = _component_of(kind, node, int(random.integers(parameters.gpus_per_node)))
        until_ns = at_ns + _lognormal_ns(
            random, parameters.repair_median_s, parameters.repair_sigma
        )
        drawn.events.append(
            _event(parameters, random, at_ns, component, kind.kind, until_ns, code=kind.code)
        )
        drawn.silences.append(Silence(node, at_ns, until_ns))
        _draw_precursor(parameters, drawn, random, kind, node, at_ns)
        at_ns = until_ns


def _draw_precursor(
    parameters: Parameters,
    drawn: Faults,
    random: np.random.Generator,
    kind: Kind,
    node: int,
    at_ns: int,
) -> None:
    sigma = parameters.lead_sigma
    if kind is OFF_BUS:
        lead_ns = _lognormal_ns(random, parameters.vanish_median_s, sigma)
        drawn.silences.append(Silence(node, at_ns - lead_ns, at_ns, gpus_only=True))
    elif kind.signs and random.random() < parameters.precursor_share:
        lead_ns = _lognormal_ns(random, parameters.lead_median_s, sigma)
        drawn.signs.append(Sign(node, kind.signs, at_ns - lead_ns, at_ns))


def _component_of(kind: Kind, node: int, gpu: int) -> str:
    if kind.kind.startswith("gpu"):
        return gpu_name(node, gpu)
    return nic_name(node) if kind.kind == "nic" else node_name(node)


def _fabric_events(parameters: Parameters) -> Iterator[Event]:
    for rack in range(parameters.rack_count):
        random = generator(parameters.seed, f"fabric/{rack}")
        for at_ns in _times(random, parameters.fabric_per_rack_day, parameters):
            until_ns = at_ns + _nanoseconds(random.exponential(_FABRIC_MEAN_S))
            yield _event(
                parameters, random, at_ns, switch_name(rack), "link", until_ns, follows="fabric"
            )


def _job_events(parameters: Parameters) -> Iterator[Event]:
    if not parameters.job_nodes:
        return
    random = generator(parameters.seed, "job")
    for at_ns in _times(random, parameters.job_faults_per_day, parameters):
        node = int(random.integers(len(parameters.job_nodes)))
        until_ns = at_ns + _nanoseconds(_JOB_RESTART_S)
        yield _event(
            parameters, random, at_ns, node_name(node), "software", until_ns, follows="job"
        )


def _false_signs(parameters: Parameters) -> Iterator[Sign]:
    random = generator(parameters.seed, "false signs")
    per_day = parameters.false_signs_per_node_day * parameters.nodes
    for at_ns in _times(random, per_day, parameters):
        node = int(random.integers(parameters.nodes))
        metrics = _SIGNS[random.integers(len(_SIGNS))]
        lead_ns = _lognormal_ns(random, parameters.lead_median_s, parameters.lead_sigma)
        yield Sign(node, metrics, at_ns - lead_ns, at_ns)


def _gaps(parameters: Parameters) -> Iterator[Silence]:
    random = generator(parameters.seed, "gaps")
    mean_s = parameters.gap_mean_s
    for at_ns in _times(random, parameters.gaps_per_node_day * parameters.nodes, parameters):
        node = int(random.integers(parameters.nodes))
        yield Silence(node, at_ns, at_ns + _nanoseconds(random.exponential(mean_s)))
    for at_ns in _times(random, parameters.scraper_gaps_per_day, parameters):
        yield Silence(ALL_NODES, at_ns, at_ns + _nanoseconds(random.exponential(mean_s)))


def _event(
    parameters: Parameters,
    random: np.random.Generator,
    at_ns: int,
    component: str,
    kind: str,
    until_ns: int,
    *,
    code: str = "",
    follows: Follows = "component",
) -> Event:
    noticed_ns = at_ns + _nanoseconds(random.uniform(*_NOTICED_S))
    return Event(
        id="",
        t_event=at_ns,
        t_avail=noticed_ns,
        component=component,
        kind=kind,
        code=code,
        follows=follows,
        t_resolved=until_ns if until_ns <= parameters.end_ns else None,
    )


def _times(random: np.random.Generator, per_day: float, parameters: Parameters) -> list[int]:
    """Return the times of a Poisson process over the trace, sorted."""
    span_ns = parameters.end_ns - START_NS
    count = random.poisson(per_day * parameters.days)
    times: list[int] = np.sort(START_NS + random.integers(span_ns, size=count)).tolist()
    return times


def _lognormal_ns(random: np.random.Generator, median_s: float, sigma: float) -> int:
    return _nanoseconds(median_s * math.exp(sigma * random.standard_normal()))


def _nanoseconds(seconds: float) -> int:
    # Digits below a microsecond are noise.
    return round(seconds * 1e6) * 1000
