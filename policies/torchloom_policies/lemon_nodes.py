"""Cordon nodes that fail much more often than the others."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    ActedOn,
    ConfigError,
    CordonNode,
    Fault,
    FleetView,
    Migrate,
    NeedFaults,
    NotNegative,
    Positive,
    Proposal,
    Registry,
    Reserve,
    Share,
    Standbys,
    hookimpl,
    incidents,
)

_DAY_S = 86_400.0
_SHAPE = 0.5
"""Shape of the gamma distribution of nodes' rates: most are far below the mean, a few far above."""
_LOOK_S = 3600.0
"""Without a new fault the history is evaluated again after this time."""


class LemonNodesPolicy:
    """Cordon nodes that fail repeatedly, and migrate a group away from one if that pays.

    Meta found that removing such lemon nodes cut failures of jobs of 512 GPUs and more from
    14 % to 4 % ("Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
    2024). A node's incidents are counted with weights ``exp(-age / memory_s)``, and so is the
    time it was watched, E. With n such incidents and the other nodes' rate mu, its own rate has
    the gamma posterior

        Gamma(shape = 0.5 + n, rate = 0.5 / mu + E)

    (Gelman et al., "Bayesian Data Analysis", 2.6), and the node is a lemon if that exceeds
    ``ratio x mu`` with probability ``min_probability``. The prior of the others' rate counts as
    one incident at ``prior_failures_per_node_day``.

    A failure costs the run ``[(detect + restart + unsaved) x run's GPUs + replace x group's
    GPUs]``. The gain is this cost times the lemon's surplus of failures within ``horizon_s``. The
    cost is one node less for that time (:class:`~torchloom_core.plugin.Reserve`) at the failure
    rate of the other nodes; a migration adds its pause. A cordon that does not pay is not
    proposed, so a run without standbys may keep its lemons. A node is cordoned for ``memory_s``,
    the time in which its evidence fades, and again only after another incident: a person who
    uncordons a node, or a cordon that expires, gives it another chance. A group is moved after the
    cordons, once per horizon, unless the odds have doubled.
    """

    name = "lemon_nodes"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.lemon_nodes]``."""

        ratio: Annotated[float, msgspec.Meta(gt=1, le=1e6)] = 3.0
        """A lemon fails more than this many times as often as the other nodes."""
        min_probability: Share = 0.9
        """Required probability that a node is a lemon, 0 to 1."""
        memory_s: Positive = 30 * _DAY_S
        """Time constant by which incidents lose weight, and how long faults are stored, seconds."""
        incident_s: NotNegative = 3600.0
        """Faults of a node closer than this are one incident, seconds."""
        horizon_s: Positive = 7 * _DAY_S
        """Time over which the gain of avoiding the node is counted, seconds."""
        prior_failures_per_node_day: Positive = 0.0065
        """Failure rate of a node assumed before any data."""

    def __init__(self, options: Options) -> None:
        try:
            from scipy.special import gammaincc
        except ImportError as error:
            raise ConfigError(
                "policies.lemon_nodes: need the extra predictors, "
                f"pip install 'torchloom[predictors]': {error}"
            ) from None

        self._options = options
        self._tail = gammaincc
        self._watched_since_ns: int | None = None
        self._weighed_ns = 0
        self._faults: object = None
        self._histories = _Histories(options.incident_s)
        self._lemons: dict[str, _Lemon] = {}
        self._cordoned: dict[str, int] = {}
        self._moved = ActedOn()
        self.needs = (NeedFaults(options.memory_s),)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Evaluate the fault history if it changed; propose cordons, then migrations."""
        if self._watched_since_ns is None:
            self._watched_since_ns = view.now_ns
        if view.faults is not self._faults or view.now_ns - self._weighed_ns >= _LOOK_S * 1e9:
            self._faults, self._weighed_ns = view.faults, view.now_ns
            self._lemons = self._find_lemons(view)
        if not self._lemons:
            return
        run = _Run(view)
        cordons = list(self._cordon(run, view))
        # Migrations wait for the cordons: a standby on a lemon must not be chosen.
        yield from cordons or self._move(run, view)

    def _find_lemons(self, view: FleetView) -> dict[str, "_Lemon"]:
        """Return the lemons among the nodes that had an incident."""
        options = self._options
        self._histories.look(view.faults_of)
        histories = self._histories.began_ns
        if not histories:
            return {}
        nodes, began = list(histories), list(histories.values())
        memory_ns = options.memory_s * 1e9
        began_ns = np.frombuffer(b"".join(began), dtype=np.int64)
        row = np.repeat(np.arange(len(nodes)), [len(times) for times in began])
        count = np.bincount(row, np.exp((began_ns - view.now_ns) / memory_ns))
        since_ns = min(self._watched_since_ns or view.now_ns, view.faults[0].ts_ns)
        watched = options.memory_s * -np.expm1((since_ns - view.now_ns) / memory_ns)
        fleet = len({*view.node, *nodes} - {""})
        prior_s = _DAY_S / options.prior_failures_per_node_day
        others = (1.0 + count.sum() - count) / (prior_s + (fleet - 1) * watched)
        shape, rate = _SHAPE + count, _SHAPE / others + watched
        limit = rate * options.ratio * others
        lemons = {}
        # Markov's inequality avoids the incomplete gamma function for most nodes.
        for i in np.flatnonzero(shape / limit > options.min_probability).tolist():
            probability = self._tail(shape[i], limit[i])
            if probability <= options.min_probability:
                continue
            expected = shape[i] / rate[i] * self._tail(shape[i] + 1.0, limit[i]) / probability
            lemons[nodes[i]] = _Lemon(
                probability=float(probability),
                others_per_s=float(others[i]),
                surplus_per_s=float(expected - others[i]),
                incidents=len(began[i]),
                newest_ns=began[i][-1],
                times=float(shape[i] / rate[i] / others[i]),
            )
        return lemons

    def _cordon(self, run: "_Run", view: FleetView) -> Iterator[Proposal]:
        options = self._options
        away_s = min(options.memory_s, options.horizon_s)
        left = Standbys(view).left(run.group_size, avoid=self._lemons)
        for node, lemon in self._lemons.items():
            news = lemon.newest_ns > self._cordoned.get(node, -1)
            if node in view.cordoned or not news:
                continue
            still_left = left - (node in run.nodes)  # a group that trains there takes a standby
            reserve = _reserve(run, lemon, still_left, view)
            cost_gpu_s = reserve.away_gpu_s(run.gpus_per_node, away_s)
            gain_gpu_s = run.stall_gpu_s * options.horizon_s * lemon.surplus_per_s
            if lemon.probability * gain_gpu_s <= cost_gpu_s:
                continue
            left = still_left
            self._cordoned[node] = lemon.newest_ns
            yield Proposal(
                action=CordonNode(node=node, lasts_s=options.memory_s),
                reason=lemon.describe(node),
                gain_gpu_s=gain_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=lemon.probability,
            )

    def _move(self, run: "_Run", view: FleetView) -> Iterator[Proposal]:
        horizon_s, costs = self._options.horizon_s, view.costs
        standbys = Standbys(view)
        for group, rows in run.groups.items():
            worst = max(
                (view.node[row] for row in rows if view.node[row] in self._lemons),
                key=lambda node: self._lemons[node].probability,
                default="",
            )
            if not worst or not standbys.fit(rows, avoid=self._lemons):
                continue
            lemon = self._lemons[worst]
            news = ((group, worst), lemon.probability, view.now_ns)
            gpus = costs.gpus_per_worker * len(rows)
            gain_gpu_s = (
                lemon.surplus_per_s * horizon_s * (run.stall_gpu_s + costs.replace_s * gpus)
            )
            left = standbys.left(len(rows), avoid=self._lemons) - 1
            cost_gpu_s = _reserve(run, lemon, left, view).move_gpu_s(gpus)
            if lemon.probability * gain_gpu_s <= cost_gpu_s or not self._moved.is_news(*news):
                continue
            standbys.take(rows, avoid=self._lemons)
            self._moved.add(*news, horizon_s)
            yield Proposal(
                action=Migrate(group=group),
                reason=f"group {group} trains on {lemon.describe(worst)}",
                gain_gpu_s=gain_gpu_s,
                cost_gpu_s=cost_gpu_s,
                confidence=lemon.probability,
            )


class _Histories:
    """The incidents of each node, updated only where a fault was added or removed.

    ``began_ns`` is when those of a node began, oldest first; the nodes by name.
    """

    def __init__(self, incident_s: float) -> None:
        self._incident_s = incident_s
        self._faults_of: Mapping[str, tuple[Fault, ...]] = {}
        self.began_ns: dict[str, array[int]] = {}

    def look(self, faults_of: Mapping[str, tuple[Fault, ...]]) -> None:
        """Update the incidents of places whose faults changed since the last call."""
        before, self._faults_of = self._faults_of, faults_of
        for place, faults in faults_of.items():
            if before.get(place) is not faults and faults[0].node:
                self.began_ns[place] = array("q", incidents(faults, self._incident_s))
        if before.keys() != faults_of.keys():
            nodes = sorted(place for place, faults in faults_of.items() if faults[0].node)
            self.began_ns = {node: self.began_ns[node] for node in nodes}


@dataclass(frozen=True)
class _Lemon:
    """A node that fails repeatedly: the probability, and its surplus of failures per second."""

    probability: float
    others_per_s: float
    surplus_per_s: float
    incidents: int
    newest_ns: int
    times: float

    def describe(self, node: str) -> str:
        count = "1 incident" if self.incidents == 1 else f"{self.incidents} incidents"
        return (
            f"{node}, which fails about {self.times:.0f} times as often as other nodes "
            f"({count}); a lemon node with probability {self.probability:.2f}"
        )


class _Run:
    """The training workers by group, and the cost of a stall of all of them."""

    def __init__(self, view: FleetView) -> None:
        costs = view.costs
        self.groups: dict[str, list[int]] = {}
        rows = np.flatnonzero(view.is_in("training", "paused")).tolist()
        for row in rows:
            self.groups.setdefault(view.group[row], []).append(row)
        self.nodes = {view.node[row] for row in rows}
        self.group_size = max(map(len, self.groups.values()), default=0)
        self.gpus = costs.gpus_per_worker * len(rows)
        self.gpus_per_node = self.gpus / max(1, len(self.nodes))
        self.stall_gpu_s = (costs.detect_s + costs.restart_s + costs.unsaved_s) * self.gpus


def _reserve(run: _Run, lemon: _Lemon, left: int, view: FleetView) -> Reserve:
    """Return the remaining standbys without the lemon, and the failure rate on other nodes."""
    failures_per_s = lemon.others_per_s * len(run.nodes)
    return Reserve(view.costs, run_gpus=run.gpus, failures_per_s=failures_per_s, left=left)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(LemonNodesPolicy)
