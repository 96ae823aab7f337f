"""The broker's metrics, read from its monitoring port at each scrape."""

import urllib.request
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_ANSWER_S = 2.0
_MOST_BYTES = 1 << 20
_PREFIX = "torchloom_broker_"
_T = TypeVar("_T")


class _Varz(msgspec.Struct, frozen=True):
    connections: int = 0
    total_connections: int = 0
    slow_consumers: int = 0
    subscriptions: int = 0
    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0
    mem: int = 0


class _Limits(msgspec.Struct, frozen=True):
    max_storage: int = 0


class _Jsz(msgspec.Struct, frozen=True):
    storage: int = 0
    streams: int = 0
    consumers: int = 0
    messages: int = 0
    config: _Limits = _Limits()


class BrokerMetrics(Collector):
    """Reads the server at ``url()``, empty for none; a server that does not answer is ``up 0``."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; called in a thread of the metrics server."""
        url = self._url().rstrip("/")
        if not url:
            return
        up = GaugeMetricFamily("torchloom_broker_up", "1: its monitoring port answers")
        try:
            varz, jsz = _read(f"{url}/varz", _Varz), _read(f"{url}/jsz", _Jsz)
        except (OSError, msgspec.MsgspecError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        for name, text, value in (
            ("connections", "Open connections", varz.connections),
            ("subscriptions", "Subscriptions", varz.subscriptions),
            ("memory_bytes", "Resident memory", varz.mem),
            ("jetstream_storage_bytes", "Bytes stored by JetStream", jsz.storage),
            ("jetstream_limit_bytes", "Most that JetStream may store", jsz.config.max_storage),
            ("jetstream_messages", "Messages stored by JetStream", jsz.messages),
            ("jetstream_streams", "Streams", jsz.streams),
            ("jetstream_consumers", "Consumers", jsz.consumers),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        for name, text, value in (
            ("connections_opened", "Connections accepted", varz.total_connections),
            ("slow_consumers", "Connections cut off because they fell behind", varz.slow_consumers),
            ("messages_received", "Messages received", varz.in_msgs),
            ("messages_sent", "Messages sent", varz.out_msgs),
            ("received_bytes", "Bytes received", varz.in_bytes),
            ("sent_bytes", "Bytes sent", varz.out_bytes),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)


def _read(url: str, kind: type[_T]) -> _T:
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
        return msgspec.json.decode(answer.read(_MOST_BYTES), type=kind)
