"""Counts what the Weaver takes and decides, as Prometheus counters and histograms."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import (
    CommandStatus,
    Judged,
    Notice,
    Outcome,
    Output,
    Proposed,
    Verdict,
)
from torchloom_core.wire.events import DeliveryStatus, Forecast, Input

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)


class RunCounts:
    """Counters of one Weaver; all labels have few values, and none names a worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"torchloom_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            full = f"torchloom_weaver_{name}_seconds"
            return Histogram(full, text, registry=registry, buckets=_SECONDS)

        self.other_inputs = 0
        self.loop_lag_s = histogram("loop_lag", "Delay of a timer on the Weaver's event loop")
        self._tick_s = histogram("tick_duration", "Time that a tick took")
        self._late_s = histogram("tick_lateness", "How late a tick began")
        self._inputs = counter("weaver_inputs", "Inputs processed, telemetry excluded", "kind")
        self._proposals = counter("proposals", "Proposals of policies", "policy", "action")
        self._verdicts = counter(
            "verdicts", "Verdicts of the arbiter, by the rule that decided", "policy", "action",
            "granted", "rule",
        )  # fmt: skip
        self._outcomes = counter(
            "outcomes", "Results of granted actions", "policy", "action", "result"
        )
        self._judgements = counter("guard_judgements", "Judgements of watched changes", "result")
        self._commands = counter(
            "commands", "Status changes of commands to workers", "verb", "status"
        )
        self._alerts = counter("alerts", "Alerts raised", "policy")
        self._notices = counter("notices", "Events that a person should see", "kind")
        self._forecasts = counter("forecasts", "Answers of predictors", "predictor")
        self._deliveries = counter(
            "deliveries", "Results of deliveries to effectors and notifications", "effector",
            "result",
        )  # fmt: skip

    def took(self, message: Input, outputs: Sequence[Output], ts_ns: int) -> None:
        """Count an input and its outputs."""
        self.other_inputs += 1
        self._inputs.labels(str(message.__struct_config__.tag)).inc()
        match message:
            case Forecast(predictor=predictor):
                self._forecasts.labels(predictor).inc()
            case DeliveryStatus(effector=effector, result=result):
                self._deliveries.labels(effector, result).inc()
        for output in outputs:
            self._count(output)

    def _count(self, output: Output) -> None:
        match output:
            case CommandStatus(verb=verb, status=status):
                self._commands.labels(verb, status).inc()
            case Proposed(policy=policy, proposal=proposal):
                self._proposals.labels(policy, name_of(proposal.action)).inc()
            case Verdict(policy=policy, action=action, granted=granted, rule=rule):
                labels = policy, name_of(action), str(granted).lower(), rule
                self._verdicts.labels(*labels).inc()
            case Outcome(policy=policy, action=action, result=result):
                self._outcomes.labels(policy, name_of(action), result).inc()
                if kind_of(action).alert_text(action):
                    self._alerts.labels(policy).inc()
            case Judged(hurt=hurt):
                word = {True: "hurt", False: "harmless", None: "unjudged"}[hurt]
                self._judgements.labels(word).inc()
            case Notice(kind=kind):
                self._notices.labels(kind).inc()

    def ticked(self, late_s: float, took_s: float) -> None:
        """Count a tick."""
        self._late_s.observe(late_s)
        self._tick_s.observe(took_s)
