"""The parameters of a synthetic trace: the options of ``torchloom trace synthesize``."""

import zlib
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.config.schema import NotNegative, Positive, Share
from torchloom_core.floor.clock import SECOND_NS

START_NS = 1_767_225_600 * SECOND_NS
"""1 January 2026, 00:00 UTC: the start of every synthetic trace."""

DAY_S = 86_400.0
_NODES_PER_RACK = 16

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of the fleet, rates of its faults, and sampling of its telemetry.

    Attributes
    ----------
    racks : int
        0 for one per 16 nodes. A power feed serves ``racks_per_feed`` of them.
    interval_s : float
        Between two samples of a node; 0 for no telemetry.
    faults_per_node_day : float
        Mean rate of component faults over all nodes, including lemons; Meta measured 0.0065 on
        RSC-1 (Kokolis et al., "Revisiting Reliability", 2024).
    weibull_shape : float
        Of the time to a node's next fault since its last repair; 1 is a Poisson process, with
        less than 1 faults cluster after a repair.
    lemon_share, lemon_factor : float
        Share of lemon nodes, and their fault rate relative to the others.
    power_per_feed_day, switch_per_rack_day, fabric_per_rack_day : float
        A power cut takes down all nodes of a feed, a broken switch all nodes of a rack; a fabric
        fault is over within minutes.
    job_faults_per_day : float
        Faults of the job itself, on any of its nodes.
    repair_median_s, repair_sigma : float
        Lognormal time to repair a component, a feed or a switch.
    precursor_share : float
        Share of component faults with a precursor, among the kinds that can have one.
    lead_median_s, lead_sigma : float
        Lognormal time from the first sign to the fault.
    false_signs_per_node_day : float
        Rate of signs that no fault follows.
    vanish_median_s : float
        Time from the last metrics of a GPU until it falls off the bus; lognormal with
        ``lead_sigma``.
    gaps_per_node_day, scraper_gaps_per_day, gap_mean_s : float
        Gaps in the telemetry of one node, or of all nodes; their length is exponential.
    job_share : float
        Share of the nodes on which the job runs, one replica group per node.
    """

    nodes: Count = 48
    racks: Annotated[int, msgspec.Meta(ge=0)] = 0
    racks_per_feed: Count = 4
    gpus_per_node: Count = 8
    days: Positive = 30.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    interval_s: NotNegative = 60.0
    faults_per_node_day: NotNegative = 6.5e-3
    weibull_shape: Positive = 1.0
    lemon_share: Share = 0.03
    lemon_factor: Positive = 10.0
    power_per_feed_day: NotNegative = 1e-3
    switch_per_rack_day: NotNegative = 1e-3
    fabric_per_rack_day: NotNegative = 5e-3
    job_faults_per_day: NotNegative = 0.2
    repair_median_s: Positive = 4 * 3600.0
    repair_sigma: NotNegative = 1.0
    precursor_share: Share = 0.4
    lead_median_s: Positive = 6 * 3600.0
    lead_sigma: NotNegative = 0.8
    false_signs_per_node_day: NotNegative = 2e-3
    vanish_median_s: Positive = 600.0
    gaps_per_node_day: NotNegative = 0.1
    scraper_gaps_per_day: NotNegative = 0.05
    gap_mean_s: Positive = 900.0
    job_share: Share = 0.75

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
