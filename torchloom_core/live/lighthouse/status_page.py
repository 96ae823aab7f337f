"""A lighthouse's HTTP pages: ``/status`` as a page and as JSON, and ``/metrics``.

They are read-only. torchft's own page has a button that ends a replica, for every client that
reaches the port.
"""

import time
from collections.abc import Iterator
from html import escape
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from torchloom_core.floor.serving_since import SINCE
from torchloom_core.live.lighthouse.service import Service

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_REFRESH_S = 2


def read_status(service: Service) -> dict[str, Any]:
    """Return ``/status``, the JSON.

    A group's ``state``: ``member`` of the last quorum, ``asking`` for the next, ``heard``
    (heartbeats only), ``held`` back, ``aside`` (left or evicted) or ``lost``.
    """
    electorate, now_s = service.electorate, service.now_s()
    members = electorate.members or frozenset()
    last = {m.replica_id: m for m in service.last.members} if service.last else {}
    states = dict.fromkeys(electorate.aside, "aside")
    states |= dict.fromkeys(electorate.heartbeats, "heard")
    states |= dict.fromkeys(members, "member")
    states |= dict.fromkeys(electorate.requests, "asking")
    states |= dict.fromkeys(electorate.held, "held")
    states |= dict.fromkeys(electorate.lost, "lost")
    groups = []
    for replica_id, state in sorted(states.items()):
        member = electorate.requests.get(replica_id) or last.get(replica_id)
        beat_s = electorate.heartbeats.get(replica_id)
        groups.append(
            {
                "replica_id": replica_id,
                "state": state,
                "step": member.step if member else None,
                "commit_failures": member.commit_failures if member else 0,
                "heard_s": None if beat_s is None else round(now_s - beat_s, 3),
            }
        )
    counters = service.counters
    return {
        "quorum_id": electorate.quorum_id,
        "members": len(members),
        "quorum_age_s": round(now_s - service.formed_s, 3),
        "next": electorate.why(now_s),
        "waiting_s": round(electorate.waiting_s(now_s), 3),
        "groups": groups,
        "counters": {name: getattr(counters, name) for name in counters.__slots__},
    }


def application(service: Service, since_ns: int = 0) -> Starlette:
    """Return the pages of a lighthouse, declared at ``since_ns``; 0: it begins to serve now."""
    registry = CollectorRegistry()
    registry.register(_Metrics(service))

    async def status(request: Request) -> Response:
        seen = read_status(service)
        wants_page = "text/html" in request.headers.get("accept", "")
        if wants_page and request.query_params.get("format") != "json":
            headers = {"content-security-policy": _POLICY, "refresh": str(_REFRESH_S)}
            return HTMLResponse(_page(seen), headers=headers)
        return Response(msgspec.json.encode(seen), media_type="application/json")

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    since = {SINCE: str(since_ns or time.time_ns())}

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=since)

    return Starlette(
        routes=[
            Route("/", status),
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/health", healthz),
            Route("/healthz", healthz),
        ]
    )


class _Metrics(Collector):
    """Reads the service's counters at each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        service, now_s = self._service, time.monotonic()
        electorate, counters = service.electorate, service.counters
        for name, text in (
            ("heartbeats", "Heartbeats of replica groups"),
            ("requests", "Requests for a quorum"),
            ("quorums", "Quorums formed"),
            ("joins", "Replica groups that came into a quorum and were not in the one before"),
            ("late_heartbeats", "Heartbeats that came a second after the last, or later"),
            ("lost", "Calls cut off by the end of a replica group's process or Manager"),
            ("malformed", "Calls that could not be decoded"),
            ("unsaved", "Failed writes of the state"),
        ):
            value = getattr(counters, name)
            yield CounterMetricFamily(f"torchloom_lighthouse_{name}", text, value=value)
        for name, text, number in (
            ("quorum_id", "Id of the last quorum", electorate.quorum_id),
            ("members", "Replica groups in the last quorum", len(electorate.members or ())),
            ("healthy", "Replica groups with a recent heartbeat", len(electorate.heartbeats)),
            ("asking", "Replica groups that wait for a quorum", len(electorate.requests)),
            ("held", "Replica groups held back", len(electorate.held)),
            ("waiting_seconds", "Longest wait for a quorum", electorate.waiting_s(now_s)),
        ):
            yield GaugeMetricFamily(f"torchloom_lighthouse_{name}", text, value=number)


def _page(seen: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr class={escape(group['state'])}><td>{escape(group['replica_id'])}<td>{group['state']}"
        f"<td>{'' if group['step'] is None else group['step']}<td>{group['commit_failures'] or ''}"
        f"<td>{'' if group['heard_s'] is None else format(group['heard_s'], '.1f') + ' s'}"
        for group in seen["groups"]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Lighthouse</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{_STYLE}</style><h1>Lighthouse</h1>"
        f"<p>Quorum <b>{seen['quorum_id']}</b> of <b>{seen['members']}</b>, "
        f"{seen['quorum_age_s']:.1f} s old. Next: {escape(seen['next'])}.</p>"
        "<table><thead><tr><th>replica group<th>state<th>step<th>failed commits<th>heartbeat"
        f"<tbody>{rows}</table>"
        "<p><a href='?format=json'>JSON</a> <a href=/metrics>metrics</a></p></html>"
    )


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui;margin:2rem auto;max-width:60rem;"
    "padding:0 1rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;"
    "padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884}td:nth-child(n+3){"
    "font-variant-numeric:tabular-nums}.lost td,.aside td{text-decoration:line-through}"
    ".held td{opacity:.7}"
)
