"""The open loop: replay a trace through the kernel; no action changes it.

Policies get the inputs of a live run, and the arbiter weighs their proposals. A bundle that came
from a trajectory is replayed input by input, so the verdicts are those of the live kernel.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Ints
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.closed_loop import failures_of, forecast_of
from torchloom_core.lab.evaluate.forecasts.alarms import scored_incidents
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import BacktestForecasts, judge
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.goodput.job import ticking
from torchloom_core.lab.evaluate.results import ReplayedPolicy
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import INPUTS
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.lab.trace.recorded.recorded import recorded_incarnation, recorded_inputs
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.actions import Action
from torchloom_core.wire.decisions import ForecastWanted, Output, Proposed, Verdict
from torchloom_core.wire.events import Forecast, PredictorFailed

_MOMENTS = 24
"""Sample times per horizon at which alarms are scored."""


def replay_policies(
    bundle: Bundle,
    arm: Arm,
    config: Config,
    task: Task,
    *,
    from_ns: int | None = None,
    source: str = "torchloom.toml",
) -> ReplayedPolicy:
    """Replay a trace from ``from_ns`` on through a kernel with the arm's policies.

    A proposal about a worker, its group or its node counts as an alarm, which should precede an
    incident of ``task``. A recorded trajectory is replayed whole. ConfigError if the arm's config
    is wrong.
    """
    stream: Iterator[tuple[int, Sequence[Output]]]
    if (bundle.path / INPUTS).is_file():
        incarnation = recorded_incarnation(bundle)
        own = arm.activated(incarnation.config)
        plugins = activate(own, installed(), source)
        kernel = Kernel(own, plugins, RecordedGuard(incarnation.overruns))
        stream = ((ts_ns, kernel.step(one, ts_ns)) for ts_ns, one in recorded_inputs(bundle))
    else:
        own = arm.activated(ticking(config))
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
    statistics = _PolicyStatistics(
        bundle, kernel, own.weaver.tick_s, task, (begin_ns, bundle.manifest.end_ns)
    )
    for ts_ns, outputs in stream:
        statistics.add(ts_ns, outputs)
    failed = "; ".join(f"{f.rule}: {f.detail}" for f in failures_of(plugins, kernel))
    silent = tuple(sorted(kernel.forecasts.silent))
    return replace(statistics.result(arm.name), what=arm.what, failed=failed, silent=silent)


def _open_loop(
    kernel: Kernel, plugins: ActivePlugins, feed: Feed, config: Config
) -> Iterator[tuple[int, Sequence[Output]]]:
    """Feed the trace; forecasts arrive after ``forecast_s``, and commands get no acks."""
    forecast_s = config.evaluate.forecast_s
    answers: deque[tuple[int, Forecast | PredictorFailed]] = deque()
    for ts_ns, message in feed:
        while answers and answers[0][0] <= ts_ns:
            at_ns, answer = answers.popleft()
            kernel.step(answer, at_ns)
        outputs = kernel.step(message, ts_ns)
        for output in outputs:
            if isinstance(output, ForecastWanted):
                answer = forecast_of(plugins, kernel, output, forecast_s)
                answers.append((ts_ns + round(forecast_s * SECOND_NS), answer))
        yield ts_ns, outputs


class _PolicyStatistics:
    """Counts proposals, and scores them as alarms against the incidents of the trace.

    Alarms are stored at sample times a part of the horizon apart, so that memory does not grow
    with the number of ticks; an alarm between two sample times counts at the later one.
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
        self._denied: Counter[str] = Counter()

    def add(self, ts_ns: int, outputs: Iterable[Output]) -> None:
        """Count the proposals and verdicts of one tick."""
        at = int(np.searchsorted(self._times, ts_ns))
        for output in outputs:
            match output:
                case Proposed(proposal=proposal):
                    self._proposals += 1
                    if at < len(self._times):
                        self._alarms[at, self._rows(proposal.action)] = True
                case Verdict(granted=True):
                    self._granted += 1
                case Verdict(rule=rule):
                    self._denied[rule] += 1
                case _:
                    pass

    def _rows(self, action: Action) -> list[int]:
        """Return the watched rows that the action raises an alarm for."""
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
        forecasts = BacktestForecasts(
            self._watched, self._times, self._every_s, alarms.astype(np.float64)
        )
        judged = judge(self._bundle, forecasts, self._task)
        of = scored_incidents(judged, alarms)
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
