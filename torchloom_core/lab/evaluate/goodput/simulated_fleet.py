"""Connect the fleet model to the closed loop, and count its decisions."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from torchloom_core.interface.outlook import UNSAVED_WORK
from torchloom_core.lab.evaluate.closed_loop import WorkerMessage
from torchloom_core.lab.evaluate.goodput.episode import Episode
from torchloom_core.lab.evaluate.goodput.replayed_metrics import ReplayedMetrics
from torchloom_core.lab.evaluate.goodput.simulated_workers import SimulatedWorkers
from torchloom_core.lab.evaluate.results import TimelineEntry
from torchloom_core.lab.simulate.answer import answer_of, answering
from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.records import FleetEvent
from torchloom_core.lab.simulate.scenario import JobSpec
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.live.kernel.actions.kinds import kind_of, target_of
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import Verdict


class SimulatedFleet:
    """A job on the nodes of an episode.

    ``decisions`` counts granted verdicts that change the run, ``moves`` the migrations and drains
    among them, and ``right_moves`` those where a node that was left is hit within ``horizon_s``.
    ``timeline`` has the events of the fleet, and decisions. ``metrics`` are those that the active
    plugins read.
    """

    def __init__(
        self,
        episode: Episode,
        job: JobSpec,
        model: FleetModel,
        run: str,
        metrics: Iterable[str],
        horizon_s: float,
    ) -> None:
        self._episode, self._model = episode, model
        watched = watch(episode.bundle)
        self._workers = SimulatedWorkers(
            model, run, dict(zip(watched.node, watched.labels.of, strict=False))
        )
        metrics = {*metrics}
        self._metrics = ReplayedMetrics(episode, metrics)
        # With recovery per step only one step is lost, which ``costs.unsaved_s`` covers.
        self._reports_unsaved = UNSAVED_WORK in metrics and job.recovery == "restart"
        self._horizon_ns = to_ns(horizon_s)
        self.end_ns = episode.end_ns
        self.decisions = self.moves = self.right_moves = self._invalid = 0
        self.timeline: list[TimelineEntry] = []

    def advance(self, ts_ns: int) -> Iterable[tuple[int, WorkerMessage]]:
        """Simulate until ``ts_ns``; return the workers' messages with their times."""
        fleet_events = self._model.advance(ts_ns)
        self.timeline += timeline_of(fleet_events)
        return self._workers.messages(fleet_events, ts_ns)

    @property
    def invalid_decisions(self) -> int | None:
        """Decisions based on load-dependent telemetry of another load; None if none is read."""
        return self._invalid if self._metrics.depends_on_load else None

    def report(self, ts_ns: int) -> SampleTable:
        """Return the telemetry of the workers' nodes."""
        metrics = self._metrics.metrics
        values = self._metrics.read(self._workers.members, ts_ns)
        if self._reports_unsaved:
            metrics = (*metrics, UNSAVED_WORK)
            values = np.column_stack([values, self._workers.unsaved_s(ts_ns)])
        return self._workers.sample(metrics, values)

    def execute(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Execute a command on the fleet; return all acks."""
        return self._workers.execute(command, ts_ns)

    def uncordon(self, node: str) -> None:
        """Use the node as any other again."""
        self._model.uncordon(node)

    def apply(self, action: Action) -> None:
        """Apply an action that the Weaver carried out without commands."""
        name = name_of(action)
        with answering(name):
            answer_of(name).done(self._model, action)

    def take_verdict(self, verdict: Verdict, ts_ns: int) -> None:
        """Count a granted action that changes the run, and whether a move was right."""
        action, kind = verdict.action, kind_of(verdict.action)
        if verdict.granted:
            self._workers.expect(verdict)
        if not verdict.granted or not kind.changes_run:
            return
        self.decisions += 1
        self._invalid += self._rests_on_masked(action)
        for group in kind.moves(action):
            self.moves += 1
            self.right_moves += self._is_right(group, ts_ns)
        self.timeline.append(
            TimelineEntry(
                ts_ns=ts_ns,
                kind=f"decided {name_of(action)}",
                place=target_of(action),
                detail=verdict.reason,
            )
        )

    def _is_right(self, group: str, ts_ns: int) -> bool:
        """Return whether a node of the group will be hit within the horizon."""
        nodes = {member.node for member in self._workers.members if member.group == group}
        hits, when = self._episode.hits, attrgetter("ts_ns")
        first = bisect_right(hits, ts_ns, key=when)
        last = bisect_right(hits, ts_ns + self._horizon_ns, key=when)
        return any(not nodes.isdisjoint(hit.nodes) for hit in hits[first:last])

    def _rests_on_masked(self, action: Action) -> bool:
        """Return whether load-dependent metrics were omitted for a worker of the action."""
        masked, kind = self._metrics.masked, kind_of(action)
        if not kind.is_alarm:
            return bool(masked)
        group, worker, node = kind.subject(action)
        return any(
            member.worker in masked
            for member in self._workers.members
            if member.group == group or member.worker == worker or member.node == node
        )


def timeline_of(fleet_events: Iterable[FleetEvent]) -> list[TimelineEntry]:
    """Return the timeline entries of events; the many checkpoints have none."""
    return [
        TimelineEntry(ts_ns=of.ts_ns, kind=of.kind, place=of.node or of.group, detail=of.detail)
        for of in fleet_events
        if of.kind not in ("committed", "saved")
    ]
