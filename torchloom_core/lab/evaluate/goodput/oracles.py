"""Scripted forecasts for the oracle and the alarm baselines, and the clairvoyant run.

The driver passes the hits of the run. The policy ``failure_forecast`` acts on the forecasts, so the
usual arbiter and prices apply.
"""

import bisect
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.api import Hazard
from torchloom_core.interface.needs import PredictorNeed
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.evaluate.goodput.arms import SCRIPTED
from torchloom_core.lab.evaluate.goodput.episode import rng
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.records import FleetEvent
from torchloom_core.lab.simulate.scenario import Hit, JobSpec

_DAY_S = 86_400.0


class ScriptedPredictor:
    """Give scripted forecasts, 0 or 1 per worker.

    ``oracle`` gives 1 if the worker's node is hit within the horizon, ``always`` for every worker
    that trains, ``random`` for random workers at a given rate.
    """

    name = SCRIPTED

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options that the driver sets."""

        kind: Literal["oracle", "always", "random"] = "oracle"
        horizon_s: float = _DAY_S
        every_s: float = 600.0
        alarms_per_node_day: float = 0.0
        seed: int = 0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._hits_of: dict[str, list[int]] = {}
        self._rng = rng(options.seed, "alarms")
        self.needs: Sequence[PredictorNeed] = ()
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s

    def set_hits(self, hits: Iterable[Hit]) -> None:
        """Set the times at which nodes will be hit; hits are in time order."""
        for hit in hits:
            for node in hit.nodes:
                self._hits_of.setdefault(node, []).append(hit.ts_ns)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)``: 1 for an alarm, else 0."""
        match self._options.kind:
            case "always":
                alarm = view.is_in("training", "paused")
            case "random":
                share = self._options.alarms_per_node_day * self.every_s / _DAY_S
                alarm = self._rng.random(len(view)) < share
            case "oracle":
                horizon_ns = round(self.horizon_s * SECOND_NS)
                alarm = np.fromiter(
                    (self._is_hit(node, view.now_ns, horizon_ns) for node in view.node),
                    np.bool_,
                    len(view),
                )
        return Hazard(probability=alarm.astype(np.float64))

    def _is_hit(self, node: str, now_ns: int, horizon_ns: int) -> bool:
        hits = self._hits_of.get(node)
        if hits is None:
            return False
        at = bisect.bisect_right(hits, now_ns)
        return at < len(hits) and hits[at] <= now_ns + horizon_ns


SCRIPTED_INFO = PluginInfo(
    name=SCRIPTED,
    kind="predictor",
    entry_point="torchloom",
    package="torchloom",
    version="",
    cls=ScriptedPredictor,
)
"""Entry for the activation; the predictor is not an installed plugin."""


def run_clairvoyant(
    model: FleetModel, job: JobSpec, hits: Iterable[Hit], end_ns: int
) -> list[FleetEvent]:
    """Play a run with perfect knowledge, and return its events.

    Just before a hit, a checkpoint is saved if a failure stops all groups; then warm standbys
    replace the groups that would lose a node, if that is cheaper than the failure. There are no
    other checkpoints.
    """
    stops_all = job.recovery == "restart"
    moves = job.migrate_s < (job.detect_s + job.durable.restart_s if stops_all else job.step_s)
    margin_ns = round((job.proactive_save_s + job.migrate_s + 1.0) * SECOND_NS)
    fleet_events: list[FleetEvent] = []
    for hit in hits:
        if hit.ts_ns - margin_ns < model.now_ns:
            continue
        fleet_events += model.advance(hit.ts_ns - margin_ns)
        struck = {
            member.group
            for member in model.workers()
            if member.node in hit.nodes and member.state in ("training", "paused")
        }
        if hit.nodes and not struck:
            continue
        if stops_all:
            model.save_checkpoint()
        if moves:
            _leave(model, sorted(struck), hit)
    return fleet_events + model.advance(end_ns)


def _leave(model: FleetModel, struck: Sequence[str], hit: Hit) -> None:
    """Move every struck group to a standby that is not hit itself, if there are enough."""
    by_group: dict[str, list[str]] = {}
    for member in model.workers():
        if member.state == "standby":
            by_group.setdefault(member.group, []).append(member.node)
    safe = [group for group, nodes in sorted(by_group.items()) if not {*nodes} & {*hit.nodes}]
    if len(safe) >= len(struck):
        for standby, group in zip(safe, struck, strict=False):
            model.join(standby)
            model.drain(group)
