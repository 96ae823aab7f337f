"""Serve a Weaver's metrics; :mod:`torchloom_core.live.weaver.startup` starts it.

A scrape is answered in a thread of its own. The run's state is read on the Weaver's event
loop, so that it is consistent; a Weaver whose loop hangs fails its scrapes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from torchloom_core.config.monitoring import FAILED_STEPS, Metrics
from torchloom_core.floor.addresses import address
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.weaver.metrics.broker import BrokerMetrics
from torchloom_core.live.weaver.metrics.counts import RunCounts
from torchloom_core.live.weaver.metrics.failed_steps import FailedSteps
from torchloom_core.live.weaver.metrics.goodput import LiveGoodput
from torchloom_core.live.weaver.metrics.readings import Readings
from torchloom_core.live.weaver.metrics.scrapes import listen
from torchloom_core.live.weaver.metrics.seen import Seen
from torchloom_core.live.weaver.watchers import Watcher, Watchers
from torchloom_core.wire.events import Input
from torchloom_core.wire.messages import Hello

_log = logging.getLogger(__name__)

_LAG_EVERY_S = 0.25
_UPDATE_EVERY_S = 1.0
_ANSWER_S = 5.0
_AGAIN_S = 10.0


@asynccontextmanager
async def serving(
    settings: Metrics, seen: Seen, watchers: Watchers, broker_url: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve the metrics of one Weaver; a port in use is tried again, with a warning."""
    registry = CollectorRegistry()
    counts = RunCounts(registry)
    goodput, failed = LiveGoodput(seen.kernel.fleet), FailedSteps()
    for watcher in (counts, _Hellos(goodput)):
        watchers.add(watcher)
    registry.register(_OnLoop(Readings(seen, counts, goodput, failed).read))
    registry.register(BrokerMetrics(lambda: settings.broker or broker_url()))
    ProcessCollector(registry=registry)
    tasks = [
        asyncio.create_task(_measure_lag(counts)),
        asyncio.create_task(_account(seen, goodput, failed)),
        asyncio.create_task(_listen(settings.address, registry)),
    ]
    try:
        yield
    finally:
        await end_all(*tasks)


async def _listen(where: str, registry: CollectorRegistry) -> None:
    host, port = address(where, "metrics.address")
    while True:
        try:
            end = listen(host, port, registry)
            break
        except OSError as error:
            text = "metrics are not served at %s: %s; trying again"
            _log.warning(text, where, error.strerror or error)
            await asyncio.sleep(_AGAIN_S)
    _log.info("metrics: http://%s/metrics", where)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        end()


async def _measure_lag(counts: RunCounts) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        counts.loop_lag_s.observe(max(0.0, loop.time() - due))


async def _account(seen: Seen, goodput: LiveGoodput, failed: FailedSteps) -> None:
    while True:
        await asyncio.sleep(_UPDATE_EVERY_S)
        goodput.update(seen.now_ns())
        failed.update(seen.kernel.fleet.last_column(FAILED_STEPS))


class _Hellos(Watcher):
    """Passes hellos to the goodput account."""

    def __init__(self, goodput: LiveGoodput) -> None:
        self._goodput = goodput

    def took(self, message: Input, outputs: object, ts_ns: int) -> None:
        if isinstance(message, Hello):
            self._goodput.take(message)

    def ticked(self, late_s: float, took_s: float) -> None:
        pass


class _OnLoop(Collector):
    """Calls ``read`` on the event loop on which this is made, from the server's threads."""

    def __init__(self, read: Callable[[], list[Metric]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()

    def describe(self) -> list[Metric]:
        return []  # registering must not wait for the loop

    def collect(self) -> Iterator[Metric]:
        async def on_loop() -> list[Metric]:
            return self._read()

        yield from asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(_ANSWER_S)
