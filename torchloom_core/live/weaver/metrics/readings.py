"""Reads the state of the run and its Weaver as gauges, at each scrape."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from torchloom_core.live.weaver.metrics.counts import RunCounts
from torchloom_core.live.weaver.metrics.failed_steps import FailedSteps
from torchloom_core.live.weaver.metrics.goodput import LiveGoodput
from torchloom_core.live.weaver.metrics.seen import Seen
from torchloom_core.live.weaver.metrics.workers import fleet_metrics

_MOST_KNOBS = 200
_STEP_TIME = "step_time_s"
_QUORUM = (
    ("quorum_members", "Groups in the last quorum"),
    ("quorum_id", "Id of the last quorum"),
    ("quorum_waiting_seconds", "Longest wait for a quorum"),
)


class Readings:
    """The metrics that are read, not counted; call :meth:`read` on the Weaver's loop only."""

    def __init__(
        self, seen: Seen, counts: RunCounts, goodput: LiveGoodput, failed: FailedSteps
    ) -> None:
        self._seen = seen
        self._counts = counts
        self._goodput = goodput
        self._failed = failed

    def read(self) -> list[Metric]:
        """Return every metric."""
        seen = self._seen
        return [
            *self._weaver(),
            *self._training(),
            *fleet_metrics(seen.kernel.fleet, seen.now_ns(), seen.config.metrics),
            *self._decisions(),
            *self._predictors(),
            *self._knobs(),
            *self._lighthouse(),
        ]

    def _weaver(self) -> Iterator[Metric]:
        seen, kernel = self._seen, self._seen.kernel
        info = GaugeMetricFamily("torchloom_weaver_info", "The run", labels=["run"])
        info.add_metric([seen.config.run.name], 1)
        yield info
        yield _gauge("weaver_leader", "1: this Weaver controls the run, 0: it stands by", 1)
        yield _gauge("weaver_epoch", "Fencing epoch", kernel.commands.epoch)
        yield _counter(
            "weaver_telemetry_batches", "Telemetry batches", kernel.seq - self._counts.other_inputs
        )
        yield _counter("weaver_ticks", "Ticks", kernel.ticks)
        yield _counter("weaver_malformed_messages", "Malformed messages dropped", seen.malformed())
        queues = GaugeMetricFamily(
            "torchloom_weaver_queue_length", "Entries that wait", labels=["queue"]
        )
        for queue, length in seen.waiting().items():
            queues.add_metric([queue], length)
        yield queues
        yield _gauge(
            "weaver_recording_paused", "1: the trajectory is not written", bool(seen.recording())
        )
        yield _gauge(
            "weaver_broker_full", "1: state waits for space on the broker", bool(seen.broker_full())
        )
        yield _gauge("weaver_actions_stopped", "1: kill switch", kernel.run.switch.stopped)
        yield _gauge("weaver_dry_run", "1: no command is sent", seen.config.arbiter.dry_run)
        working = GaugeMetricFamily(
            "torchloom_plugin_working", "0: it is quarantined", labels=["kind", "plugin"]
        )
        for policy in seen.plugins.policies:
            working.add_metric(["policy", policy.name], policy.name not in kernel.host.quarantined)
        for name in seen.plugins.predictors:
            working.add_metric(["predictor", name], name not in kernel.forecasts.failed)
        yield working

    def _training(self) -> Iterator[Metric]:
        yield _gauge("run_step", "Median of the working ranks' last steps", self._goodput.run_step)
        step_time_s = self._seen.kernel.run.guards.newest(_STEP_TIME)
        yield _known("run_step_time_seconds", "Median time of a step", step_time_s)
        yield _counter("run_failed_steps", "Steps that were not committed", self._failed.total)
        spent = GaugeMetricFamily(
            "torchloom_run_rank_seconds",
            "Rank-seconds since the Weaver started, by what they were spent on. A gauge: steps "
            "that are trained again move from useful to recomputed",
            labels=["bucket"],
        )
        for kind, seconds in self._goodput.rank_seconds.items():
            spent.add_metric([kind], seconds)
        yield spent
        yield _known(
            "run_goodput_ratio",
            "Share of useful steps in the ranks' time, standbys excluded",
            self._goodput.ratio,
        )

    def _decisions(self) -> Iterator[Metric]:
        kernel = self._seen.kernel
        flying = GaugeMetricFamily(
            "torchloom_commands_in_flight", "Commands without a final status", labels=["status"]
        )
        for status, count in Counter(f.status for f in kernel.commands.flights.values()).items():
            flying.add_metric([status], count)
        yield flying
        yield _gauge("proposals_waiting", "Proposals to approve", len(kernel.arbiter.waiting))
        yield _gauge("nodes_cordoned", "Cordoned nodes", len(kernel.fleet.cordons.nodes))
        yield _gauge("crash_loops", "Ranks in a crash loop", len(kernel.fleet.crash_loops.of))
        yield _gauge("roles_suspended", "Suspended roles", len(kernel.run.suspensions.table))

    def _predictors(self) -> Iterator[Metric]:
        hazard = GaugeMetricFamily(
            "torchloom_forecast_hazard_max_ratio",
            "Highest probability of a failure in the newest forecast, over its horizon",
            labels=["predictor"],
        )
        latency = GaugeMetricFamily(
            "torchloom_forecast_latency_seconds",
            "Time of the newest forecast",
            labels=["predictor"],
        )
        for name, forecast in self._seen.kernel.forecasts.newest.items():
            latency.add_metric([name], forecast.latency_s)
            if forecast.hazard:
                hazard.add_metric([name], max(forecast.hazard.values()))
        yield hazard
        yield latency

    def _knobs(self) -> Iterator[Metric]:
        knobs = GaugeMetricFamily(
            "torchloom_knob_desired", "Desired value for all workers", labels=["knob", "role"]
        )
        desired = self._seen.kernel.run.desired
        shown = 0
        for role in self._seen.kernel.fleet.roles:
            for name, value in desired.of_all(role).items():
                if isinstance(value, int | float) and shown < _MOST_KNOBS:
                    knobs.add_metric([name, role], float(value))
                    shown += 1
        yield knobs

    def _lighthouse(self) -> Iterator[Metric]:
        view = self._seen.kernel.run.steering.view
        known = [] if view is None else [len(view.members), view.quorum_id, view.waiting_s]
        for (name, text), value in zip_longest(_QUORUM, known):
            yield _known(name, text, value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"torchloom_{name}", text, value=float(value))


def _known(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge, without a sample if the value is not known."""
    metric = GaugeMetricFamily(f"torchloom_{name}", text, labels=())
    if value is not None and math.isfinite(value):
        metric.add_metric((), float(value))
    return metric


def _counter(name: str, text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(f"torchloom_{name}", text, value=value)
