"""Knowledge that nobody has: predictors that were told the future, or know that they guess.

The driver gives them the hits of the run. They speak through the policy ``failure_forecast``, so
that the same arbiter judges what follows and the same prices are paid.
"""

import bisect
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from torchloom_core.activation.discovery import PluginInfo
from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.goodput.arms import FORETOLD
from torchloom_core.evaluate.goodput.episode import rng
from torchloom_core.plugin.api import Hazard
from torchloom_core.plugin.needs import PredictorNeed
from torchloom_core.plugin.view import FleetView
from torchloom_core.simulate.model import FleetModel
from torchloom_core.simulate.records import Happening
from torchloom_core.simulate.scenario import Hit, JobSpec

_DAY_S = 86_400.0


class Foretold:
    """Tell of each worker whether its node will be hit within the horizon, or pretend to.

    ``oracle`` says 1 where a hit comes, ``always`` of everybody who trains, ``random`` so often
    as it is told to, of anybody; of the others 0.
    """

    name = FORETOLD

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """What the driver decides.

        Attributes
        ----------
        alarms_per_node_day : float
            Of ``random``: how many alarms one worker gets in a day on average.
        """

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

    def be_told(self, hits: Iterable[Hit]) -> None:
        """Learn when each node will be hit; hits are in time order."""
        for hit in hits:
            for node in hit.nodes:
                self._hits_of.setdefault(node, []).append(hit.ts_ns)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)``: 1 where an alarm is given, 0 elsewhere."""
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


FORETOLD_INFO = PluginInfo(
    name=FORETOLD,
    kind="predictor",
    entry_point="torchloom",
    package="torchloom",
    version="",
    cls=Foretold,
)
"""So that a config can name it; it is no plugin, and nothing else can."""


def know_it_all(
    model: FleetModel, job: JobSpec, hits: Iterable[Hit], end_ns: int
) -> list[Happening]:
    """Play a run with perfect knowledge and return what happened.

    Just before a hit everything is saved, where a failure stops all; then a standby takes the
    place of each group that would lose a node, if one is warm and that is cheaper than to fail.
    Nothing is saved otherwise.
    """
    stops_all = job.recovery == "restart"
    moves = job.migrate_s < (job.detect_s + job.durable.restart_s if stops_all else job.step_s)
    margin_ns = round((job.proactive_save_s + job.migrate_s + 1.0) * SECOND_NS)
    happenings: list[Happening] = []
    for hit in hits:
        if hit.ts_ns - margin_ns < model.now_ns:
            continue
        happenings += model.advance(hit.ts_ns - margin_ns)
        struck = {m.group for m in model.workers() if m.node in hit.nodes and _works(m.state)}
        if hit.nodes and not struck:
            continue
        if stops_all:
            model.save_checkpoint()
        if moves:
            _leave(model, sorted(struck), hit)
    return happenings + model.advance(end_ns)


def _leave(model: FleetModel, struck: Sequence[str], hit: Hit) -> None:
    """Move every struck group to a standby that will not be hit as well, if all can be moved."""
    by_group: dict[str, list[str]] = {}
    for member in model.workers():
        if member.state == "standby":
            by_group.setdefault(member.group, []).append(member.node)
    safe = [group for group, nodes in sorted(by_group.items()) if not {*nodes} & {*hit.nodes}]
    if len(safe) >= len(struck):
        for standby, group in zip(safe, struck, strict=False):
            model.join(standby)
            model.drain(group)


def _works(state: str) -> bool:
    return state in ("training", "paused")
