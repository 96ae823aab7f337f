"""Run a lighthouse: gRPC for Managers, a page for people, and the link to the Weaver."""

import asyncio
import logging
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import msgspec

from torchloom_core.floor.addresses import address
from torchloom_core.floor.errors import ConfigError, LighthouseError, MessageError
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.tls import NO_TLS, Renewal, TlsFiles, server_context
from torchloom_core.floor.web_server import listener, served, url_of
from torchloom_core.live.lighthouse import protocol
from torchloom_core.live.lighthouse.front import Front, listeners
from torchloom_core.live.lighthouse.membership import Member, Rules, SavedState
from torchloom_core.live.lighthouse.quorum import Electorate
from torchloom_core.live.lighthouse.service import Service
from torchloom_core.live.lighthouse.state_file import StateFile, id_by_the_clock
from torchloom_core.live.lighthouse.status_page import application
from torchloom_core.live.lighthouse.weaver_link import WeaverLink

_log = logging.getLogger(__name__)

_GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    # By default gRPC cancels calls beyond 1000 pending ones, which a large run exceeds.
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
    # A host that lost its power does not close its connections.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_LOOPBACK = "127.0.0.1"
_HELD_SHARE = 0.4
_STOP_S = 0.5
"""Time to answer pending calls at the end."""

_LISTEN_S = 1.0
"""Managers send ten heartbeats per second while there is no lighthouse."""

_LONGEST_HOLD_S = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a lighthouse; times in seconds.

    ``hold_s``, the delay of the answer to a heartbeat, is by default 2 s or 0.4 of the heartbeat
    timeout. Without a state it waits for the groups in ``expect``; a ``standby`` waits until the
    lighthouse that uses the state has ended.
    """

    bind: str
    status_bind: str
    rules: Rules
    tick_s: float = 0.1
    hold_s: float | None = None
    run: str = "run"
    state: Path | None = None
    standby: bool = False
    expect: tuple[str, ...] = ()
    url: str = ""
    creds: Path | None = None
    since_ns: int = 0
    broker_tls: TlsFiles = NO_TLS
    tls: TlsFiles = NO_TLS


async def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, or SIGUSR1 while no group is alive; or LighthouseError."""
    hold_s = _hold_s(settings)
    address(settings.bind, "--bind")
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        state = StateFile(settings.state, settings.run) if settings.state else None
        if state is not None:
            stack.callback(state.close)
            if await first_done(state.take(wait=settings.standby), stop.wait()):
                return
        found = state.load() if state else None
        lowest_id = id_by_the_clock()
        saved, epoch = found or (SavedState(quorum_id=lowest_id), 0)
        now_s = time.monotonic()
        electorate = Electorate(
            settings.rules, saved, now_s, requests=last_requests(state, saved), lowest_id=lowest_id
        )
        if found is None:
            electorate.delay_until(now_s + _LISTEN_S)
            electorate.expect(settings.expect, now_s + settings.rules.join_timeout_s)
        service = Service(
            electorate, hold_s=hold_s, tick_s=settings.tick_s, state=state, epoch=epoch
        )

        def end_if_empty() -> None:
            if electorate.is_empty(service.now_s()):
                stop.set()

        loop.add_signal_handler(signal.SIGUSR1, end_if_empty)
        page = _page_listener(settings.status_bind)
        tls = tls_context(settings.tls)
        port = await listen(settings.bind, service, stack, page, tls, settings.since_ns)
        await service.save()
        parts = [service.tick()]
        if tls is not None:
            parts.append(Renewal(tls, settings.tls).follow())
        if settings.url:
            where = settings.url, settings.creds, settings.broker_tls
            link = WeaverLink(service, settings.run, *where, restored=found is not None)
            service.on_change = link.changed
            parts.append(link.run())
        host = address(settings.bind, "--bind")[0]
        name = socket.gethostname() if host in ("::", "0.0.0.0") else host
        url = f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"
        shown = f", its page is {url_of(page)}/status" if page else ""
        ready(f"Lighthouse is ready on {url}{shown}")
        await first_done(*parts, stop.wait())


def last_requests(state: StateFile | None, saved: SavedState) -> tuple[Member, ...]:
    """Return the requests of the last quorum's members, if known."""
    reply = state.last_reply() if state else b""
    try:
        quorum = protocol.decode_quorum(reply)
    except MessageError:
        return ()
    return quorum.members if quorum.quorum_id == saved.quorum_id else ()


def _hold_s(settings: Settings) -> float:
    timeout_s = settings.rules.heartbeat_timeout_s
    safe_s = min(_LONGEST_HOLD_S, _HELD_SHARE * timeout_s)
    hold_s = safe_s if settings.hold_s is None else settings.hold_s
    if hold_s > timeout_s / 2:
        raise LighthouseError(
            f"--heartbeat_hold_ms: need at most half of --heartbeat_timeout_ms, "
            f"{timeout_s * 500:g}, was {hold_s * 1000:g}"
        )
    return hold_s


async def listen(
    bind: str,
    service: Service,
    stack: AsyncExitStack,
    page: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
    since_ns: int = 0,
) -> int:
    """Serve Managers and HTTP on one port, which is returned, and HTTP alone on ``page``.

    With ``tls`` the port is for relays of Managers, and for https.
    """
    try:
        found = listeners(*address(bind, "--bind"))
    except OSError as error:
        why = error.strerror or error
        raise LighthouseError(f"--bind: cannot listen on {bind}: {why}") from None
    for one in found:
        stack.callback(one.close)
    server = grpc.aio.server(options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers((_Handlers(service.methods()),))
    http = listener(_LOOPBACK, 0)
    ports = int(server.add_insecure_port(f"{_LOOPBACK}:0")), int(http.getsockname()[1])
    front = Front(*ports, tls)
    service.caller = front.caller
    pages = [http, page] if page else [http]
    await stack.enter_async_context(served(application(service, since_ns), *pages, ws="none"))
    await stack.enter_async_context(front.serving(found))
    await server.start()
    stack.push_async_callback(server.stop, _STOP_S)
    stack.callback(service.close)
    return int(found[0].getsockname()[1])


def tls_context(files: TlsFiles) -> ssl.SSLContext | None:
    """Return what TLS needs, None without a certificate; LighthouseError if it cannot be used."""
    try:
        return server_context(files, asks_clients=bool(files.ca)) if files.certificate else None
    except ConfigError as error:
        raise LighthouseError(str(error)) from None


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    def __init__(self, methods: dict[str, grpc.RpcMethodHandler]) -> None:
        self._methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._methods.get(details.method)


def _page_listener(bind: str) -> socket.socket | None:
    """Return a listener for the page beside the main port, or None."""
    if not bind:
        return None
    try:
        return listener(*address(bind, "--status_bind"))
    except OSError as error:
        why = error.strerror or error
        _log.warning(
            "--status_bind: cannot listen on %s: %s; the page is on the main port only", bind, why
        )
        return None
