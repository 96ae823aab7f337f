"""The closed loop: the kernel watches the fleet model as it would watch a run, and acts on it.

The kernel, the arbiter and the plugins are those that run live. The model takes the place of the
trainers: it says hello, reports, dies, and does what it is commanded. Nothing is shown before it
could be known, and every command and every forecast takes the time that the config says.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.evaluate.goodput.episode import Episode
from torchloom_core.evaluate.goodput.replayed_metrics import ReplayedMetrics
from torchloom_core.evaluate.goodput.simulated_workers import SimulatedWorkers
from torchloom_core.evaluate.goodput.verdict_counts import VerdictCounts
from torchloom_core.evaluate.results import TimelineEntry
from torchloom_core.fleet.sample_table import SampleTable
from torchloom_core.kernel.actions.kinds import kind_of, target_of
from torchloom_core.kernel.kernel import Kernel
from torchloom_core.kernel.plugins.guard import RecordedGuard
from torchloom_core.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin.forecasting import run_predictor
from torchloom_core.plugin.needs import windows_s
from torchloom_core.plugin.outlook import UNSAVED_WORK
from torchloom_core.simulate.answers.answers import ANSWERS
from torchloom_core.simulate.model import FleetModel
from torchloom_core.simulate.records import Happening
from torchloom_core.simulate.scenario import JobSpec
from torchloom_core.wire.actions import Action, UncordonNode, name_of
from torchloom_core.wire.events import (
    CordonOver,
    Forecast,
    ForecastWanted,
    Input,
    Issue,
    NodeFault,
    Outcome,
    Output,
    PredictorFailed,
    Tick,
    Verdict,
)
from torchloom_core.wire.messages import Command

_Due = Input | Command
_ORDER: dict[type, int] = {NodeFault: 0, Command: 1, Forecast: 2, PredictorFailed: 2, Tick: 3}
"""What is due at the same time is taken in this order."""


class ClosedLoop:
    """One run of one arm: what is due, in time order, and what came of it.

    Parameters
    ----------
    config : Config
        The kernel's, with the costs and the tick of the backtest.
    plugins : ActivePlugins
        Just built: they keep state.
    horizon_s : float
        A move is right if a node that was left is hit within this time.

    Attributes
    ----------
    verdicts : list of (int, Verdict)
        Everything the arbiter said, and when.
    decisions, invalid_decisions : int
        Granted verdicts that change something, and those of them that rest on telemetry which
        is not what would have been measured.
    moves, right_moves : int
        Migrations and drains among them, and those that were right.
    verdict_counts : VerdictCounts
        What was proposed, and what came of it.
    timeline : list of TimelineEntry
        What happened in the fleet and was decided.
    """

    def __init__(
        self,
        episode: Episode,
        job: JobSpec,
        model: FleetModel,
        config: Config,
        plugins: ActivePlugins,
        horizon_s: float,
    ) -> None:
        settings = config.evaluate
        self._episode, self._model, self._plugins = episode, model, plugins
        self._kernel = Kernel(config, plugins, RecordedGuard())
        self._workers = SimulatedWorkers(model, config.run.name)
        metrics = {*windows_s(plugins.needs)}
        self._metrics = ReplayedMetrics(episode, metrics)
        # Where only a step is ever lost, ``costs.unsaved_s`` says what there is to say.
        self._tells_unsaved = UNSAVED_WORK in metrics and job.recovery == "restart"
        self._tick_ns = round(settings.tick_s * SECOND_NS)
        self._command_ns = round(settings.command_s * SECOND_NS)
        self._forecast_ns = round(settings.forecast_s * SECOND_NS)
        self._forecast_s = settings.forecast_s
        self._due: list[tuple[int, int, int, _Due]] = []
        self._numbered = 0
        self.verdicts: list[tuple[int, Verdict]] = []
        self._horizon_ns = round(horizon_s * SECOND_NS)
        self.decisions = self.invalid_decisions = self.moves = self.right_moves = 0
        self.verdict_counts = VerdictCounts()
        self.timeline: list[TimelineEntry] = []

    @property
    def quarantined(self) -> dict[str, str]:
        """Plugins that broke their contract or could not start, and why."""
        failures = [
            *self._plugins.failed,
            *self._kernel.host.quarantined.values(),
            *self._kernel.forecasts.failed.values(),
        ]
        return {
            failure.predictor if isinstance(failure, PredictorFailed) else failure.policy: (
                f"{failure.rule}: {failure.detail}"
            )
            for failure in failures
        }

    @property
    def silent(self) -> tuple[str, ...]:
        """Predictors that never gave a probability of anybody, sorted."""
        return tuple(sorted(self._kernel.forecasts.silent))

    def run(self) -> None:
        """Play the episode to its end."""
        episode = self._episode
        for ts_ns, fault in episode.told:
            self._put(ts_ns, fault)
        self._put(episode.start_ns + self._tick_ns, Tick())
        self._catch_up(episode.start_ns)
        while self._due and self._due[0][0] <= episode.end_ns:
            ts_ns, _, _, message = heapq.heappop(self._due)
            self._catch_up(ts_ns)
            if isinstance(message, Command):
                self._obey(message, ts_ns)
            elif isinstance(message, Tick):
                self._tick(ts_ns)
            else:
                self._enter(message, ts_ns)
        self._catch_up(episode.end_ns)

    def _put(self, ts_ns: int, message: _Due) -> None:
        self._numbered += 1
        heapq.heappush(self._due, (ts_ns, _ORDER[type(message)], self._numbered, message))

    def _catch_up(self, ts_ns: int) -> None:
        """Let the fleet live until ``ts_ns`` and tell the kernel who came and went."""
        happenings = self._model.advance(ts_ns)
        self.timeline += [entry_of(happening) for happening in happenings if is_told(happening)]
        for at_ns, message in self._workers.news(happenings, ts_ns):
            self._enter(message, at_ns)

    def _enter(self, message: Input | SampleTable, ts_ns: int) -> None:
        self._take(self._kernel.step(message, ts_ns), ts_ns)

    def _tick(self, ts_ns: int) -> None:
        metrics = self._metrics.metrics
        values = self._metrics.read(self._workers.members, ts_ns)
        if self._tells_unsaved:
            metrics = (*metrics, UNSAVED_WORK)
            values = np.column_stack([values, self._workers.unsaved_s(ts_ns)])
        self._enter(self._workers.sample(metrics, values), ts_ns)
        self._enter(Tick(), ts_ns)
        self._put(ts_ns + self._tick_ns, Tick())

    def _obey(self, command: Command, ts_ns: int) -> None:
        """Let the fleet do what is commanded, and bring back the acks."""
        for ack in self._workers.obey(command, ts_ns):
            self._enter(ack, ts_ns)
        self._catch_up(ts_ns)

    def _take(self, outputs: Iterable[Output], ts_ns: int) -> None:
        for output in outputs:
            match output:
                case Issue(command=command):
                    self._put(max(ts_ns, self._model.now_ns) + self._command_ns, command)
                case ForecastWanted():
                    self._put(ts_ns + self._forecast_ns, self._forecast(output))
                case Verdict():
                    self._judged(output, ts_ns)
                case Outcome(action=action, result="done"):
                    ANSWERS[name_of(action)].done(self._model, action)
                case CordonOver(node=node):
                    ANSWERS["uncordon"].done(self._model, UncordonNode(node=node))
                case _:
                    pass

    def _forecast(self, wanted: ForecastWanted) -> Forecast | PredictorFailed:
        name = wanted.predictor
        predictor, view = self._plugins.predictors[name], self._kernel.predictor_view(name)
        return run_predictor(wanted.id, name, predictor, view, lambda: self._forecast_s)

    def _judged(self, verdict: Verdict, ts_ns: int) -> None:
        self.verdicts.append((ts_ns, verdict))
        self.verdict_counts.enter(verdict)
        action, kind = verdict.action, kind_of(verdict.action)
        if verdict.granted:
            self._workers.expect(verdict)
        if not verdict.granted or not kind.changes_run:
            return
        self.decisions += 1
        self.invalid_decisions += self._rests_on_masked(action)
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
