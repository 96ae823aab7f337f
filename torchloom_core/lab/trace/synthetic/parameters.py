"""The parameters of a synthetic trace, the options of ``torchloom trace synthesize``; its fleet."""

import zlib
from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.config.ranges import NotNegative, Positive, Share
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.schema import Component, Job, Placement

START_NS = 1_767_225_600 * SECOND_NS
"""1 January 2026, 00:00 UTC: the start of every synthetic trace."""

DAY_S = 86_400.0
_NODES_PER_RACK = 16

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of the fleet, rates of its faults, and sampling of its telemetry."""

    nodes: Count = 48
    racks: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0 for one per 16 nodes. A power feed serves ``racks_per_feed`` of them."""
    racks_per_feed: Count = 4
    gpus_per_node: Count = 8
    days: Positive = 30.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    interval_s: NotNegative = 60.0
    """Between two samples of a node; 0 for no telemetry."""
    faults_per_node_day: NotNegative = 6.5e-3
    """Mean rate of component faults over all nodes, including lemons; Meta measured 0.0065 on RSC-1
    (Kokolis et al., "Revisiting Reliability", 2024)."""
    weibull_shape: Positive = 1.0
    """Of the time to a node's next fault since its last repair; 1 is a Poisson process, with less
    than 1 faults cluster after a repair."""
    lemon_share: Share = 0.03
    lemon_factor: Positive = 10.0
    """Share of lemon nodes, and their fault rate relative to the others."""
    power_per_feed_day: NotNegative = 1e-3
    switch_per_rack_day: NotNegative = 1e-3
    fabric_per_rack_day: NotNegative = 5e-3
    """A power cut takes down all nodes of a feed, a broken switch all nodes of a rack; a fabric
    fault is over within minutes."""
    job_faults_per_day: NotNegative = 0.2
    """Faults of the job itself, on any of its nodes."""
    repair_median_s: Positive = 4 * 3600.0
    repair_sigma: NotNegative = 1.0
    """Lognormal time to repair a component, a feed or a switch."""
    precursor_share: Share = 0.4
    """Share of component faults with a precursor, among the kinds that can have one."""
    lead_median_s: Positive = 6 * 3600.0
    lead_sigma: NotNegative = 0.8
    """Lognormal time from the first sign to the fault."""
    false_signs_per_node_day: NotNegative = 2e-3
    """Rate of signs that no fault follows."""
    vanish_median_s: Positive = 600.0
    """Time from the last metrics of a GPU until it falls off the bus; lognormal with
    ``lead_sigma``."""
    gaps_per_node_day: NotNegative = 0.1
    scraper_gaps_per_day: NotNegative = 0.05
    gap_mean_s: Positive = 900.0
    """Gaps in the telemetry of one node, or of all nodes; their length is exponential."""
    job_share: Share = 0.75
    """Share of the nodes on which the job runs, one replica group per node."""

    @property
    def end_ns(self) -> int:
        """The end of the trace, nanoseconds since the Unix epoch."""
        return START_NS + round(self.days * DAY_S) * SECOND_NS

    @property
    def rack_count(self) -> int:
        """Number of racks."""
        return self.racks or -(-self.nodes // _NODES_PER_RACK)

    @property
    def feed_count(self) -> int:
        """Number of power feeds."""
        return -(-self.rack_count // self.racks_per_feed)

    @property
    def job_nodes(self) -> range:
        """The nodes on which the job runs."""
        return range(round(self.job_share * self.nodes))

    def rack_of(self, node: int) -> int:
        """Return the rack of a node; the racks differ by one node at most."""
        return node * self.rack_count // self.nodes


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random generator of one process, independent of all others."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


JOB = "job-0"


def node_name(node: int) -> str:
    """Return the id of a node, from 0."""
    return f"node-{node:04d}"


def rack_name(rack: int) -> str:
    """Return the id of a rack, from 0."""
    return f"rack-{rack:03d}"


def switch_name(rack: int) -> str:
    """Return the id of the switch of a rack."""
    return f"switch-{rack:03d}"


def feed_name(feed: int) -> str:
    """Return the id of a power feed, from 0."""
    return f"power-{feed:02d}"


def gpu_name(node: int, gpu: int) -> str:
    """Return the id of one of a node's GPUs, from 0."""
    return f"{node_name(node)}/gpu-{gpu}"


def nic_name(node: int) -> str:
    """Return the id of a node's network card."""
    return f"{node_name(node)}/nic"


def components(parameters: Parameters) -> Iterator[Component]:
    """Yield the topology: power feeds, racks with a switch each, nodes, their GPUs and NIC."""
    for feed in range(parameters.feed_count):
        yield Component(id=feed_name(feed), kind="power")
    for rack in range(parameters.rack_count):
        feed_id = feed_name(rack // parameters.racks_per_feed)
        yield Component(id=rack_name(rack), kind="rack", parents=(feed_id,))
        yield Component(id=switch_name(rack), kind="switch", parents=(rack_name(rack),))
    for node in range(parameters.nodes):
        rack, name = parameters.rack_of(node), node_name(node)
        parents = (rack_name(rack), switch_name(rack))
        yield Component(id=name, kind="node", parents=parents, gpus=parameters.gpus_per_node)
        for gpu in range(parameters.gpus_per_node):
            yield Component(id=gpu_name(node, gpu), kind="gpu", parents=(name,), gpus=1)
        yield Component(id=nic_name(node), kind="nic", parents=(name,))


def job_rows(parameters: Parameters) -> Iterator[Job | Placement]:
    """Yield the job, which runs beyond the trace, and one replica group per node."""
    nodes = parameters.job_nodes
    if not nodes:
        return
    yield Job(
        id=JOB,
        start_ns=START_NS,
        censored=True,
        groups=len(nodes),
        gpus_per_node=parameters.gpus_per_node,
        step_s=10.0,
        checkpoint_s=30.0,
        restart_s=120.0,
    )
    for node in nodes:
        yield Placement(
            job=JOB, group=f"g{node}", rank=0, component=node_name(node), from_ns=START_NS
        )
