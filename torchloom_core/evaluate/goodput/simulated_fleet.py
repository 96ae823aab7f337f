"""The fleet model and its workers as the closed loop drives them, and what was decided there."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from torchloom_core.evaluate.closed_loop import News
from torchloom_core.evaluate.goodput.episode import Episode
from torchloom_core.evaluate.goodput.replayed_metrics import ReplayedMetrics
from torchloom_core.evaluate.goodput.simulated_workers import SimulatedWorkers
from torchloom_core.evaluate.results import TimelineEntry
from torchloom_core.fleet.sample_table import SampleTable
from torchloom_core.kernel.actions.kinds import kind_of, target_of
from torchloom_core.plugin.outlook import UNSAVED_WORK
from torchloom_core.simulate.answers.answers import ANSWERS
from torchloom_core.simulate.event_queue import to_ns
from torchloom_core.simulate.model import FleetModel
from torchloom_core.simulate.records import Happening
from torchloom_core.simulate.scenario import JobSpec
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.events import Verdict
from torchloom_core.wire.messages import Ack, Command


class SimulatedFleet:
    """A job on the nodes of an episode.

    Parameters
    ----------
    metrics : iterable of str
        What the active plugins read.
    horizon_s : float
        A move is right if a node that was left is hit within this time.

    Attributes
    ----------
    end_ns : int
        When the episode ends.
    decisions : int
        Granted verdicts that change something.
    moves, right_moves : int
        Migrations and drains among them, and those that were right.
    timeline : list of TimelineEntry
        What happened in the fleet and was decided.
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
        self._workers = SimulatedWorkers(
            model, run, dict(zip(episode.watched.node, episode.watched.labels.of, strict=False))
        )
        metrics = {*metrics}
        self._metrics = ReplayedMetrics(episode, metrics)
        # Where only a step is ever lost, ``costs.unsaved_s`` says what there is to say.
        self._tells_unsaved = UNSAVED_WORK in metrics and job.recovery == "restart"
        self._horizon_ns = to_ns(horizon_s)
        self.end_ns = episode.end_ns
        self.decisions = self.moves = self.right_moves = self._invalid = 0
        self.timeline: list[TimelineEntry] = []

    def advance(self, ts_ns: int) -> Iterable[tuple[int, News]]:
        """Let the fleet live until ``ts_ns``; return who came and went."""
        happenings = self._model.advance(ts_ns)
        self.timeline += [entry_of(happening) for happening in happenings if is_told(happening)]
        return self._workers.news(happenings, ts_ns)

    @property
    def invalid_decisions(self) -> int | None:
        """Decisions that rest on telemetry which is not what would have been measured.

        None where nothing that is read depends on the load.
        """
        return self._invalid if self._metrics.depends_on_load else None

    def report(self, ts_ns: int) -> SampleTable:
        """Return the telemetry of the nodes that the workers sit on."""
        metrics = self._metrics.metrics
        values = self._metrics.read(self._workers.members, ts_ns)
        if self._tells_unsaved:
            metrics = (*metrics, UNSAVED_WORK)
            values = np.column_stack([values, self._workers.unsaved_s(ts_ns)])
        return self._workers.sample(metrics, values)

    def obey(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Let the fleet do what is commanded, and return all acks."""
        return self._workers.obey(command, ts_ns)

    def done(self, action: Action) -> None:
        """Do what the Weaver has done by itself to the fleet."""
        ANSWERS[name_of(action)].done(self._model, action)

    def judged(self, verdict: Verdict, ts_ns: int) -> None:
        """Count what changes the run, and whether it was right."""
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
        """Say whether a node of the group will be hit within the horizon."""
        nodes = {member.node for member in self._workers.members if member.group == group}
        hits, when = self._episode.hits, attrgetter("ts_ns")
        first = bisect_right(hits, ts_ns, key=when)
        last = bisect_right(hits, ts_ns + self._horizon_ns, key=when)
        return any(not nodes.isdisjoint(hit.nodes) for hit in hits[first:last])

    def _rests_on_masked(self, action: Action) -> bool:
        """Say whether a worker that the action is about reported less than it would have."""
        masked, kind = self._metrics.masked, kind_of(action)
        if not kind.is_alarm:
            return bool(masked)
        group, worker, node = kind.subject(action)
        return any(
            member.worker in masked
            for member in self._workers.members
            if member.group == group or member.worker == worker or member.node == node
        )


def is_told(happening: Happening) -> bool:
    """Say whether it belongs in a timeline: checkpoints come by the hundred."""
    return happening.kind not in ("committed", "saved")


def entry_of(happening: Happening) -> TimelineEntry:
    """Return a happening as it stands in a timeline."""
    return TimelineEntry(
        ts_ns=happening.ts_ns,
        kind=happening.kind,
        place=happening.node or happening.group,
        detail=happening.detail,
    )
