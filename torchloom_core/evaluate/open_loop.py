"""The open loop: forecasts and proposals on the trace as it was, with nobody to answer.

A policy sees what it would have seen, and the arbiter judges what it proposes; what is granted
changes nothing. A bundle that came from a trajectory is replayed input by input, and then the
verdicts are those that the live kernel gave.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from torchloom_core.activation.activation import activate
from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.dispatch.policy_guard import RecordedGuard
from torchloom_core.evaluate.forecasts.alarms import told
from torchloom_core.evaluate.forecasts.backtest_forecasts import BacktestForecasts, judge
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.goodput.arms import Arm
from torchloom_core.evaluate.goodput.job import ticking
from torchloom_core.evaluate.installed import installed
from torchloom_core.evaluate.results import ReplayedPolicy
from torchloom_core.kernel.actions.kinds import kind_of
from torchloom_core.kernel.kernel import Kernel
from torchloom_core.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin.arrays import Ints
from torchloom_core.plugin.forecasting import run_predictor
from torchloom_core.plugin.needs import windows_s
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import INPUTS
from torchloom_core.trace.feed.feed import Feed
from torchloom_core.trace.feed.watched import watch
from torchloom_core.trace.recorded.recorded import recorded_inputs, recorded_life
from torchloom_core.wire.actions import Action
from torchloom_core.wire.events import (
    Forecast,
    ForecastWanted,
    Output,
    PredictorFailed,
    Proposed,
    Verdict,
)

_MOMENTS = 24
"""In so many parts a horizon is divided to judge alarms."""


@dataclass
class Said:
    """What was said at one tick."""

    ts_ns: int
    proposed: list[Proposed] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def replay_policies(
    bundle: Bundle,
    arm: Arm,
    config: Config,
    task: Task,
    *,
    from_ns: int | None = None,
    source: str = "torchloom.toml",
) -> ReplayedPolicy:
    """Replay a trace through a kernel with the arm's policies.

    Parameters
    ----------
    task : Task
        What an alarm should be followed by: a proposal about a worker, its group or its node
        counts as one.
    from_ns : int, optional
        Begin there; absent: at the trace's start. A recorded trajectory is always replayed whole.

    Raises
    ------
    ConfigError
        If the arm's config is wrong.
    """
    if is_recorded(bundle):
        life = recorded_life(bundle)
        own = replace(life.config, policies=arm.policies, predictors=arm.predictors)
        plugins = activate(own, installed(), source)
        kernel = Kernel(own, plugins, RecordedGuard(life.overruns))
        stream = recorded_verdicts(kernel, bundle)
    else:
        own = replace(ticking(config), policies=arm.policies, predictors=arm.predictors)
        plugins = activate(own, installed(), source)
        kernel = Kernel(own, plugins, RecordedGuard())
        feed = Feed(
            bundle,
            tick_s=own.weaver.tick_s,
            start_ns=from_ns,
            metrics=list(windows_s(plugins.needs)),
            repair_s=own.evaluate.repair_s,
        )
        stream = _open_loop(kernel, plugins, feed, own)
    begin_ns = bundle.manifest.start_ns if from_ns is None else from_ns
    tally = _Tally(bundle, kernel, own.weaver.tick_s, task, (begin_ns, bundle.manifest.end_ns))
    for said in stream:
        tally.add(said)
    failures = [
        *plugins.failed,
        *kernel.host.quarantined.values(),
        *kernel.forecasts.failed.values(),
    ]
    failed = "; ".join(f"{f.rule}: {f.detail}" for f in failures)
    silent = tuple(sorted(kernel.forecasts.silent))
    return replace(tally.result(arm.name), what=arm.what, failed=failed, silent=silent)


def is_recorded(bundle: Bundle) -> bool:
    """Say whether the bundle holds the inputs of a kernel."""
    return (bundle.path / INPUTS).is_file()


def recorded_verdicts(kernel: Kernel, bundle: Bundle) -> Iterator[Said]:
    """Step a kernel through the inputs of a recorded life; yield what each led to."""
    for ts_ns, message in recorded_inputs(bundle):
        yield _said(kernel.step(message, ts_ns), ts_ns)


def _open_loop(
    kernel: Kernel, plugins: ActivePlugins, feed: Feed, config: Config
) -> Iterator[Said]:
    """Feed the trace; forecasts come after the time they take, commands are never answered."""
    forecast_s = config.evaluate.forecast_s
    answers: deque[tuple[int, Forecast | PredictorFailed]] = deque()
    for ts_ns, message in feed:
        while answers and answers[0][0] <= ts_ns:
            at_ns, answer = answers.popleft()
            kernel.step(answer, at_ns)
        outputs = kernel.step(message, ts_ns)
        for wanted in outputs:
            if isinstance(wanted, ForecastWanted):
                name = wanted.predictor
                view = kernel.predictor_view(name)
                answer = run_predictor(
                    wanted.id, name, plugins.predictors[name], view, lambda: forecast_s
                )
                answers.append((ts_ns + round(forecast_s * SECOND_NS), answer))
        yield _said(outputs, ts_ns)


def _said(outputs: Sequence[Output], ts_ns: int) -> Said:
    said = Said(ts_ns)
    for output in outputs:
        if isinstance(output, Proposed):
            said.proposed.append(output)
        elif isinstance(output, Verdict):
            said.verdicts.append(output)
    return said


class _Tally:
    """Counts what was proposed, and holds it against what happened.

    Alarms are kept by moments that lie a part of the horizon apart, so that what is kept does not
    grow with the number of ticks; one between two moments counts at the later.
    """

    def __init__(
        self, bundle: Bundle, kernel: Kernel, tick_s: float, task: Task, span: tuple[int, int]
    ) -> None:
        self._bundle, self._kernel, self._task = bundle, kernel, task
        self._watched = watch(bundle)
        ticks = max(1, round(task.horizon_s / _MOMENTS / tick_s))
        self._every_s = ticks * tick_s
        every_ns = round(self._every_s * SECOND_NS)
        self._times: Ints = np.arange(span[0] + every_ns, span[1] + 1, every_ns, dtype=np.int64)
        self._alarms = np.zeros((len(self._times), len(self._watched.ids)), dtype=np.bool_)
        self._proposals = self._granted = 0
        self._denied: dict[str, int] = {}

    def add(self, said: Said) -> None:
        """Take what one input led to."""
        self._proposals += len(said.proposed)
        for verdict in said.verdicts:
            if verdict.granted:
                self._granted += 1
            else:
                self._denied[verdict.rule] = self._denied.get(verdict.rule, 0) + 1
        at = int(np.searchsorted(self._times, said.ts_ns))
        for proposed in said.proposed:
            if at < len(self._times):
                self._alarms[at, self._rows(proposed.proposal.action)] = True

    def _rows(self, action: Action) -> list[int]:
        """Return the watched rows that the action is an alarm of."""
        kind = kind_of(action)
        if not kind.is_alarm:
            return []
        group, worker, node = kind.subject(action)
        hellos = self._kernel.fleet.hello
        nodes = {h.node for h in hellos if h.group == group or h.worker == worker} | {node}
        return [row for row, node in enumerate(self._watched.node) if node in nodes]

    def result(self, name: str) -> ReplayedPolicy:
        """Return the counts."""
        alarms = self._alarms
        said = BacktestForecasts(
            self._watched, self._times, self._every_s, alarms.astype(np.float64)
        )
        judged = judge(self._bundle, said, self._task)
        of = told(judged, alarms)
        days = judged.component_days
        return ReplayedPolicy(
            policy=name,
            proposals=self._proposals,
            granted=self._granted,
            denied_by=dict(sorted(self._denied.items())),
            incidents_found=int(of.found.sum()),
            incidents=len(of.incident),
            false_alarms_per_node_day=(
                float(judged.false_alarms(alarms).sum()) / days if days else 0.0
            ),
        )
