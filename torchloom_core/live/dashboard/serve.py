"""Run the dashboard: follow the run, and serve its page until SIGINT or SIGTERM."""

import asyncio
import errno
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from torchloom_core.config.schema import Config
from torchloom_core.config.services import Dashboard
from torchloom_core.floor.errors import ConfigError, DashboardError
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.tls import NO_TLS, Renewal, TlsFiles, server_context
from torchloom_core.floor.web_server import listener, served, url_of
from torchloom_core.live.dashboard.app import PageRequests, application
from torchloom_core.live.dashboard.auth import LOOPBACK, SessionKeys
from torchloom_core.live.dashboard.backtest import LOOK_EVERY_S, Backtest
from torchloom_core.live.dashboard.browser import PATIENCE_S
from torchloom_core.live.dashboard.live import Live
from torchloom_core.live.dashboard.proxy_sign_on import ProxySignOn
from torchloom_core.live.dashboard.run_state import RecordedRun
from torchloom_core.live.dashboard.slow import RATIO
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.transport.operator import ControlClient

_OPTIONS = {
    "ws": "websockets-sansio",
    "ws_max_size": 16_384,
    "backlog": 256,
    "timeout_keep_alive": 10,
    "timeout_graceful_shutdown": 1,
}
"""Of uvicorn."""

Ready = Callable[[str], None]


async def serve(
    config: Config,
    url: str,
    creds: Path | None,
    backtest: Backtest,
    ready: Ready,
    tls: TlsFiles = NO_TLS,
) -> None:
    """Serve a live run until SIGINT or SIGTERM.

    ``creds`` decide what the pages may do. ``ready`` is called with a line that has the link which
    opens the page, and with a new one whenever it was used. DashboardError if it cannot listen, or
    not by TLS with the files of the config; BrokerError if the broker cannot be reached.
    """
    with _listener(config.dashboard) as found:
        client = await ControlClient.connect(url, config.run.name, creds, tls)
        try:
            run = config.run.name
            root = run_folder(Path(config.weaver.state_dir), run)
            live = Live(client, run, config.weaver.stale_after_s, root)
            await live.listen()
            await _serve(config, found, run, live, PageRequests(client), backtest, ready)
        finally:
            await client.close()


async def serve_recorded(config: Config, root: Path, backtest: Backtest, ready: Ready) -> None:
    """Serve the run whose trajectory is ``root``, as :func:`serve` does; or raise StateError."""
    recorded = RecordedRun(root, config.weaver.stale_after_s)
    with _listener(config.dashboard) as found:
        await _serve(config, found, recorded.run, recorded, None, backtest, ready)


async def _serve(
    config: Config,
    found: socket.socket,
    run: str,
    state: Live | RecordedRun,
    requests: PageRequests | None,
    backtest: Backtest,
    ready: Ready,
) -> None:
    state.checkpoints.gpus_per_worker = config.costs.gpus_per_worker
    state.board.slow.ratio = float(config.policies.get("straggler", {}).get("ratio", RATIO))
    dashboard, loop, stop = config.dashboard, asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    secure = bool(dashboard.certificate)
    where = url_of(found, secure=secure)
    keys = SessionKeys(Path(config.weaver.state_dir) / "dashboard")
    sign_on = ProxySignOn(dashboard.sign_on) if dashboard.sign_on else None

    def print_link() -> None:
        if sign_on is None:
            ready(f"dashboard link, for one browser: {where}/?token={keys.token}")
        else:
            ready(f"dashboard for the proxy that signs people on: {where}")

    hosts = hosts_of(dashboard.host, dashboard.names)
    app = application(
        state, requests, keys, run, hosts, secure=secure, on_entry=print_link, sign_on=sign_on
    )
    tls = _context(dashboard)
    parts = [Renewal(tls, dashboard.tls).follow()] if tls else []
    async with served(app, found, tls=tls, **_OPTIONS):
        print_link()
        await first_done(state.follow(), _watch(state, backtest), stop.wait(), *parts)


def _context(dashboard: Dashboard) -> ssl.SSLContext | None:
    """Return what TLS needs, None without; DashboardError if its files cannot be used."""
    try:
        return server_context(dashboard.tls) if dashboard.certificate else None
    except ConfigError as error:
        raise DashboardError(str(error)) from None


async def _watch(state: Live | RecordedRun, backtest: Backtest) -> None:
    while True:
        state.backtest = await asyncio.to_thread(backtest.shown)
        await asyncio.sleep(LOOK_EVERY_S)


def _listener(dashboard: Dashboard) -> socket.socket:
    """Return where the dashboard listens; DashboardError if it cannot."""
    _context(dashboard)
    try:
        found = listener(dashboard.host, dashboard.port)
    except OSError as error:
        why = f"cannot listen on {dashboard.host}:{dashboard.port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            why += (
                "; need another port in [dashboard], or by `torchloom dashboard --port`: 0 for any"
            )
        raise DashboardError(f"[dashboard]: {why}") from None
    if sys.platform == "linux":
        # Otherwise data for a browser that takes none stays in memory for as long as that lasts.
        patience_ms = round(1000 * PATIENCE_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
    return found


def hosts_of(host: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by which a browser may reach the dashboard, an IPv6 address in brackets."""
    given = (f"[{name}]" if ":" in name else name for name in (host, *names))
    return (*LOOPBACK, *given)
