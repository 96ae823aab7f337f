"""The closed loop: the kernel watches and controls a simulated run as it would a live one.

Kernel, arbiter and plugins are those of a live run. A world simulates the trainers: their hellos,
reports, exits and the execution of commands. No fact is reported before its ``t_avail``, and every
command and forecast takes the time that the config sets.
"""

import heapq
from collections.abc import Iterable
from typing import Protocol

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.lab.evaluate.arm import Verdicts, verdicts_of
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import (
    CordonOver,
    ForecastWanted,
    Issue,
    Outcome,
    Output,
    PolicyFailed,
    Verdict,
)
from torchloom_core.wire.events import Forecast, Input, NodeFault, PredictorFailed, Tick
from torchloom_core.wire.messages import Exit, Hello

WorkerMessage = Hello | Exit | Ack | SampleTable
"""Messages that simulated workers send."""

_Due = Input | Command
_ORDER: dict[type, int] = {NodeFault: 0, Command: 1, Forecast: 2, PredictorFailed: 2, Tick: 3}
"""Order of messages that are due at the same time."""


class World(Protocol):
    """A simulated run that the loop drives; time never goes back."""

    end_ns: int
    """When the run ends, as far as is known now."""

    def advance(self, ts_ns: int) -> Iterable[tuple[int, WorkerMessage]]:
        """Simulate until ``ts_ns``; return the workers' messages with their times."""

    def report(self, ts_ns: int) -> SampleTable:
        """Return the samples of all workers at this tick."""

    def execute(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Start a command; return its first acks."""

    def take_verdict(self, verdict: Verdict, ts_ns: int) -> None:
        """Take note of a verdict of the arbiter."""

    def uncordon(self, node: str) -> None:
        """End a cordon that was for a time."""

    def apply(self, action: Action) -> None:
        """Apply an action that the Weaver carried out without commands."""


class ClosedLoop:
    """One run of one arm: the queue of due messages, and the verdicts with their times.

    ``weaver.tick_s`` of the kernel's config is the tick of the loop. ``plugins`` are newly built,
    as they keep state. ``observable_faults`` has every fault of the fleet at its ``t_avail``, those
    known at the start first.
    """

    def __init__(
        self,
        world: World,
        config: Config,
        plugins: ActivePlugins,
        *,
        start_ns: int,
        observable_faults: Iterable[tuple[int, NodeFault]] = (),
    ) -> None:
        self._world, self._plugins, self._start_ns = world, plugins, start_ns
        self._kernel = Kernel(config, plugins, RecordedGuard())
        self._tick_ns = round(config.weaver.tick_s * SECOND_NS)
        self._command_ns = round(config.evaluate.command_s * SECOND_NS)
        self._forecast_ns = round(config.evaluate.forecast_s * SECOND_NS)
        self._forecast_s = config.evaluate.forecast_s
        self._due: list[tuple[int, int, int, _Due]] = []
        self._numbered = 0
        self._now_ns = start_ns
        self.verdicts: list[tuple[int, Verdict]] = []
        for ts_ns, fault in observable_faults:
            self._put(ts_ns, fault)

    @property
    def quarantined(self) -> dict[str, str]:
        """Plugins that broke their contract or could not start, and why, sorted."""
        found = {
            failure.predictor if isinstance(failure, PredictorFailed) else failure.policy: (
                f"{failure.rule}: {failure.detail}"
            )
            for failure in failures_of(self._plugins, self._kernel)
        }
        return dict(sorted(found.items()))

    @property
    def silent(self) -> tuple[str, ...]:
        """Predictors that gave no probability for any worker, sorted."""
        return tuple(sorted(self._kernel.forecasts.silent))

    @property
    def operations(self) -> Verdicts:
        """The counts of proposals and verdicts."""
        return verdicts_of([verdict for _, verdict in self.verdicts])

    def run(self) -> None:
        """Play the world to its end."""
        self._put(self._start_ns + self._tick_ns, Tick())
        self._catch_up(self._start_ns)
        while self._due and self._due[0][0] <= self._world.end_ns:
            ts_ns, _, _, message = heapq.heappop(self._due)
            self._catch_up(ts_ns)
            if ts_ns > self._world.end_ns:
                return
            if isinstance(message, Command):
                self._execute(message, ts_ns)
            elif isinstance(message, Tick):
                self._tick(ts_ns)
            else:
                self._enter(message, ts_ns)
        self._catch_up(self._world.end_ns)

    def _put(self, ts_ns: int, message: _Due) -> None:
        self._numbered += 1
        heapq.heappush(self._due, (ts_ns, _ORDER[type(message)], self._numbered, message))

    def _catch_up(self, ts_ns: int) -> None:
        """Simulate until ``ts_ns``, and pass the workers' messages to the kernel."""
        messages = self._world.advance(ts_ns)
        self._now_ns = ts_ns
        for at_ns, message in messages:
            self._enter(message, at_ns)

    def _enter(self, message: Input | SampleTable, ts_ns: int) -> None:
        self._take(self._kernel.step(message, ts_ns), ts_ns)

    def _tick(self, ts_ns: int) -> None:
        self._enter(self._world.report(ts_ns), ts_ns)
        self._enter(Tick(), ts_ns)
        self._put(ts_ns + self._tick_ns, Tick())

    def _execute(self, command: Command, ts_ns: int) -> None:
        """Have the simulated workers execute a command; pass their acks to the kernel."""
        for ack in self._world.execute(command, ts_ns):
            self._enter(ack, ts_ns)
        self._catch_up(ts_ns)

    def _take(self, outputs: Iterable[Output], ts_ns: int) -> None:
        for output in outputs:
            match output:
                case Issue(command=command):
                    self._put(max(ts_ns, self._now_ns) + self._command_ns, command)
                case ForecastWanted():
                    forecast = forecast_of(self._plugins, self._kernel, output, self._forecast_s)
                    self._put(ts_ns + self._forecast_ns, forecast)
                case Verdict():
                    self.verdicts.append((ts_ns, output))
                    self._world.take_verdict(output, ts_ns)
                case Outcome(action=action, result="done"):
                    self._world.apply(action)
                case CordonOver(node=node):
                    self._world.uncordon(node)
                case _:
                    pass


def forecast_of(
    plugins: ActivePlugins, kernel: Kernel, request: ForecastWanted, forecast_s: float
) -> Forecast | PredictorFailed:
    """Return the requested forecast, whose latency is ``forecast_s``."""
    name = request.predictor
    predictor, view = plugins.predictors[name], kernel.predictor_view(name)
    return run_predictor(request.id, name, predictor, view, lambda: forecast_s)


def failures_of(
    plugins: ActivePlugins, kernel: Kernel
) -> tuple[PolicyFailed | PredictorFailed, ...]:
    """Return why plugins were quarantined or could not start."""
    quarantined, failed = kernel.host.quarantined.values(), kernel.forecasts.failed.values()
    return (*plugins.failed, *quarantined, *failed)
