"""The closed loop: the kernel watches a simulated run as it would watch a live one, and acts on it.

The kernel, the arbiter and the plugins are those that run live. A world takes the place of the
trainers: it says hello, reports, dies, and does what it is commanded. Nothing is shown before it
could be known, and every command and every forecast takes the time that the config says.
"""

import heapq
from collections.abc import Iterable
from typing import Protocol

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.dispatch.policy_guard import RecordedGuard
from torchloom_core.evaluate.verdict_counts import VerdictCounts
from torchloom_core.fleet.sample_table import SampleTable
from torchloom_core.kernel.kernel import Kernel
from torchloom_core.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin.forecasting import run_predictor
from torchloom_core.wire.actions import Action, UncordonNode
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
from torchloom_core.wire.messages import Ack, Command, Exit, Hello

News = Hello | Exit | Ack | SampleTable
"""What simulated workers say by themselves."""

_Due = Input | Command
_ORDER: dict[type, int] = {NodeFault: 0, Command: 1, Forecast: 2, PredictorFailed: 2, Tick: 3}
"""What is due at the same time is taken in this order."""


class World(Protocol):
    """The simulated run, as the loop drives it; time never goes back."""

    @property
    def end_ns(self) -> int:
        """When the run is over, as far as is known by now."""

    def advance(self, ts_ns: int) -> Iterable[tuple[int, News]]:
        """Let it live until ``ts_ns``; return what its workers said meanwhile, and when."""

    def report(self, ts_ns: int) -> SampleTable:
        """Return what all workers have reported by this tick."""

    def obey(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Take a command, and return its first acks."""

    def judged(self, verdict: Verdict, ts_ns: int) -> None:
        """Hear what the arbiter said."""

    def done(self, action: Action) -> None:
        """Hear what the Weaver has done by itself."""


class ClosedLoop:
    """One run of one arm: what is due, in time order, and what came of it.

    Parameters
    ----------
    config : Config
        The kernel's: its ``weaver.tick_s`` is the tick of the loop.
    plugins : ActivePlugins
        Just built: they keep state.
    start_ns : int
        When the world begins.
    told : iterable of (int, NodeFault)
        Every fault of the fleet when it could be known; what was known at the start comes first.

    Attributes
    ----------
    verdicts : list of (int, Verdict)
        Everything the arbiter said, and when.
    verdict_counts : VerdictCounts
        What was proposed, and what came of it.
    """

    def __init__(
        self,
        world: World,
        config: Config,
        plugins: ActivePlugins,
        *,
        start_ns: int,
        told: Iterable[tuple[int, NodeFault]] = (),
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
        self.verdict_counts = VerdictCounts()
        for ts_ns, fault in told:
            self._put(ts_ns, fault)

    @property
    def quarantined(self) -> dict[str, str]:
        """Plugins that broke their contract or could not start, and why, sorted."""
        failures = [
            *self._plugins.failed,
            *self._kernel.host.quarantined.values(),
            *self._kernel.forecasts.failed.values(),
        ]
        found = {
            failure.predictor if isinstance(failure, PredictorFailed) else failure.policy: (
                f"{failure.rule}: {failure.detail}"
            )
            for failure in failures
        }
        return dict(sorted(found.items()))

    @property
    def silent(self) -> tuple[str, ...]:
        """Predictors that never gave a probability of anybody, sorted."""
        return tuple(sorted(self._kernel.forecasts.silent))

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
                self._obey(message, ts_ns)
            elif isinstance(message, Tick):
                self._tick(ts_ns)
            else:
                self._enter(message, ts_ns)
        self._catch_up(self._world.end_ns)

    def _put(self, ts_ns: int, message: _Due) -> None:
        self._numbered += 1
        heapq.heappush(self._due, (ts_ns, _ORDER[type(message)], self._numbered, message))

    def _catch_up(self, ts_ns: int) -> None:
        """Let the world live until ``ts_ns`` and tell the kernel what was said."""
        news = self._world.advance(ts_ns)
        self._now_ns = ts_ns
        for at_ns, message in news:
            self._enter(message, at_ns)

    def _enter(self, message: Input | SampleTable, ts_ns: int) -> None:
        self._take(self._kernel.step(message, ts_ns), ts_ns)

    def _tick(self, ts_ns: int) -> None:
        self._enter(self._world.report(ts_ns), ts_ns)
        self._enter(Tick(), ts_ns)
        self._put(ts_ns + self._tick_ns, Tick())

    def _obey(self, command: Command, ts_ns: int) -> None:
        """Let the world do what is commanded, and bring back the acks."""
        for ack in self._world.obey(command, ts_ns):
            self._enter(ack, ts_ns)
        self._catch_up(ts_ns)

    def _take(self, outputs: Iterable[Output], ts_ns: int) -> None:
        for output in outputs:
            match output:
                case Issue(command=command):
                    self._put(max(ts_ns, self._now_ns) + self._command_ns, command)
                case ForecastWanted():
                    self._put(ts_ns + self._forecast_ns, self._forecast(output))
                case Verdict():
                    self.verdicts.append((ts_ns, output))
                    self.verdict_counts.enter(output)
                    self._world.judged(output, ts_ns)
                case Outcome(action=action, result="done"):
                    self._world.done(action)
                case CordonOver(node=node):
                    self._world.done(UncordonNode(node=node))
                case _:
                    pass

    def _forecast(self, wanted: ForecastWanted) -> Forecast | PredictorFailed:
        name = wanted.predictor
        predictor, view = self._plugins.predictors[name], self._kernel.predictor_view(name)
        return run_predictor(wanted.id, name, predictor, view, lambda: self._forecast_s)
