"""The embedded broker: one nats-server per state folder, supervised by the running Weaver.

The server is a separate process. It keeps running when the Weaver is killed, and the next Weaver
adopts it; its port is stored, so that Threadlets find a restarted server at the same address.
"""

import asyncio
import fcntl
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from torchloom_core.config.services import Broker
from torchloom_core.floor.errors import BrokerError, StateError, TorchloomError
from torchloom_core.floor.files import private_folder, write_private
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.floor.tls import TlsFiles, versions
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.broker.health import GREETING, Health, greeting, has_leader
from torchloom_core.live.transport.broker.server_config import ServerConfig, nats_url
from torchloom_core.live.transport.detached_process import (
    end,
    has_ended,
    is_running,
    read_record,
    start_detached,
)
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.live.transport.security.credentials import Credentials, check_shared_keys
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_STOP_PATIENCE_S = 10.0
_POLL_S = 0.01
_WATCH_S = 0.1
_RETRY_S = 1.0
_HEALTH_S = 5.0
_LEADER_S = 0.2
_TELL_EVERY = 50
_FATAL = "[FTL]"
_PID = re.compile("[1-9][0-9]{0,8}")


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """``broker.json``: the server that was started last."""

    pid: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    url: str
    monitor_url: str


class EmbeddedBroker:
    """A nats-server with JetStream, its files and keys in ``broker`` under the state folder."""

    def __init__(self, state_dir: Path, run: str, settings: Broker | None = None) -> None:
        settings = settings or Broker()
        self._state_dir = state_dir.absolute()
        self._folder = self._state_dir / "broker"
        self._config_path = self._folder / "nats.conf"
        self._record_path = self._folder / "broker.json"
        self._run = run
        self._server = ServerConfig(self._folder, run, settings)
        self._host = settings.host
        self._wanted_port = settings.port
        self._record: _Record | None = None
        self._credentials: Credentials | None = None
        self._files = versions(self._server.tls)
        self._health = Health(self._server.store)
        self._limited_log = RateLimitedLog(_log)
        self.launched = False

    @property
    def credentials(self) -> Credentials:
        """Credentials of this run."""
        if self._credentials is None:
            raise BrokerError("the embedded broker has not been started")
        return self._credentials

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._running.url

    @property
    def monitor_url(self) -> str:
        """Where its monitoring port answers, on loopback."""
        return self._running.monitor_url

    @property
    def shared_url(self) -> str:
        """Where clients on other hosts connect; of a cluster, the URLs of all servers."""
        return self._server.shared_url(self.port)

    @property
    def urls_from_here(self) -> str:
        """Where this host's Weaver connects: to its own server, else to any of the cluster's."""
        others = [url for url in self.shared_url.split(",") if url != self.url]
        return ",".join((self.url, *others)) if self.servers else self.url

    @property
    def tls(self) -> TlsFiles:
        """What clients on this host verify the server with."""
        return self._server.tls._replace(certificate="", key="")

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._running.pid

    @property
    def port(self) -> int:
        """Port on which clients connect."""
        return self._running.port

    @property
    def remedy(self) -> str:
        """What to do when the server runs but does not serve."""
        return (
            f"see its log {self._server.log}; to start the run afresh, delete its store "
            f"{self._server.store}"
        )

    def is_alive(self) -> bool:
        """Return whether the server's process is running."""
        return self._record is not None and self._is_ours(self._record.pid)

    async def start(self) -> None:
        """Adopt the server that runs on this state folder, or start one; or raise BrokerError."""
        starting = asyncio.create_task(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread continues and may launch a server, which :meth:`stop` has to stop.
            await asyncio.wait({starting})
            raise

    @property
    def servers(self) -> int:
        """How many servers the cluster of this one has; 0: it is none."""
        return self._server.servers

    async def joined(self) -> None:
        """Wait until most servers of the cluster are connected and have elected a leader.

        Without them nothing can be stored. It takes seconds, or as long as other hosts are away,
        which is logged.
        """
        looks = 0
        while self.servers and not await asyncio.to_thread(has_leader, self._running.monitor_url):
            if looks % _TELL_EVERY == _TELL_EVERY - 1:
                text = "nats-server waits for most of the %d servers of [broker] peers; see %s"
                _log.warning(text, self.servers, self._server.log)
            looks += 1
            await asyncio.sleep(_LEADER_S)

    async def stop(self) -> None:
        """Stop the server; its store remains."""
        await asyncio.to_thread(self._stop)

    async def supervise(self) -> None:
        """Restart the server on its port when it ends, hangs or refuses writes; until cancelled."""
        due = time.monotonic() + _HEALTH_S
        while True:
            await asyncio.sleep(_WATCH_S)
            if self.is_alive():
                if time.monotonic() >= due:
                    with suppress(RuntimeError, MemoryError):
                        await asyncio.to_thread(self._end_if_lost)
                        await asyncio.to_thread(self._renew)
                    due = time.monotonic() + _HEALTH_S
                continue
            died = self.pid
            try:
                await self.start()
            except (TorchloomError, RuntimeError, MemoryError) as error:
                # Python raises RuntimeError when it cannot start a thread.
                text = f"nats-server (pid {died}) ended and cannot be restarted: {error}"
                self._limited_log.add("restart", text)
                await asyncio.sleep(_RETRY_S)
            else:
                text = "nats-server (pid %d) ended; restarted as pid %d on port %d"
                _log.warning(text, died, self.pid, self.port)

    @property
    def _running(self) -> _Record:
        if self._record is None:
            raise BrokerError("the embedded broker has not been started")
        return self._record

    def _is_ours(self, pid: int) -> bool:
        return is_running(pid, str(self._config_path))

    def _start(self) -> None:
        try:
            self._adopt_or_launch()
        except OSError as error:
            place = error.filename or self._folder
            raise StateError(
                f"{place}: the nats-server cannot be started: {error.strerror}"
            ) from None

    def _adopt_or_launch(self) -> None:
        private_folder(self._folder)
        if self._server.servers:
            check_shared_keys(self._state_dir)
        with self._lock():
            self._credentials = Credentials.ensure(self._state_dir, self._run)
            last = read_record(self._record_path, _Record)
            port = self._wanted_port or (last.port if last else lasting_port(self._host))
            other = last if last and self._is_ours(last.pid) else None
            config = self._config_path.read_text(encoding="utf-8") if other else ""
            if other and config == self._text(port) and self._serves(other):
                self._record = other
                self._is_usable()
                return
            self._server.check_certificate(port)  # before a server is ended
            if other:
                _log.warning("nats-server (pid %d) has another config: restarting it", other.pid)
            self._end_leftovers()
            self._record = self._launch(port)

    def _serves(self, last: _Record) -> bool:
        """Return whether it greets a client as a nats-server does; wait for a slow one."""
        while (answer := greeting(last.url)) is None:
            if self._health.is_hung(last.pid, last.url):
                return False
        return answer == GREETING

    def _stop(self) -> None:
        if self._record is not None:
            end(self._record.pid, str(self._config_path), _STOP_PATIENCE_S)

    def _end_if_lost(self) -> None:
        if self._health.is_lost(self.pid, self.url, self._running.monitor_url):
            self._stop()

    def _launch(self, port: int) -> _Record:
        program = find_server()
        self._check_free(port)
        write_private(self._config_path, self._text(port))
        output = self._folder / "startup.log"
        pid = start_detached([str(program), "-c", str(self._config_path)], output)
        self.launched = True
        ports = self._await_ports(pid, output)
        record = _Record(
            pid=pid,
            port=port,
            url=self._server.own_url(port),
            monitor_url=ports["monitoring"][0],
        )
        write_private(self._record_path, msgspec.json.encode(record).decode())
        return record

    def reload(self) -> None:
        """Let the server load its config again, so that it refuses what was revoked."""
        register = self.credentials.register
        revoked = register.revoked
        write_private(self._config_path, self._text(self.port))
        register.loaded = revoked
        with suppress(ProcessLookupError):  # it is restarted with the new config
            os.kill(self.pid, signal.SIGHUP)

    def _text(self, port: int) -> str:
        return self._server.text(port, self.credentials)

    def _renew(self) -> None:
        """Let the server load its certificate again once that has changed, if it can be used."""
        now = versions(self._server.tls)
        if now == self._files:
            return
        self._files = now
        if self._is_usable():
            with suppress(ProcessLookupError):  # it is restarted
                os.kill(self.pid, signal.SIGHUP)
            _log.warning("nats-server (pid %d) loads its renewed certificate", self.pid)

    def _is_usable(self) -> bool:
        """Return whether the certificate on disk can be used, or log why the server keeps its."""
        try:
            self._server.check_certificate(self.port)
        except TorchloomError as error:
            _log.warning("nats-server (pid %d) keeps its certificate: %s", self.pid, error)
            return False
        return True

    def _end_leftovers(self) -> None:
        """Stop all servers of this folder, also one whose start was interrupted."""
        for ports_file in self._folder.glob("nats-server_*.ports"):
            pid = ports_file.stem.rpartition("_")[2]
            if _PID.fullmatch(pid):
                end(int(pid), str(self._config_path), _STOP_PATIENCE_S)
                ports_file.unlink(missing_ok=True)

    def _check_free(self, port: int) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError as error:
                remedy = (
                    "set broker.port to another port, or to 0 for any free one"
                    if self._wanted_port
                    else f"the run's trainers use this port; free it, or delete {self._record_path}"
                )
                place = nats_url(self._host, port).removeprefix("nats://")
                raise BrokerError(
                    f"broker: cannot listen on {place}: {error.strerror}; {remedy}"
                ) from None

    def _await_ports(self, pid: int, output: Path) -> dict[str, list[str]]:
        ports_file = self._folder / f"nats-server_{pid}.ports"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError, *UNREADABLE):
                return msgspec.json.decode(ports_file.read_bytes(), type=dict[str, list[str]])
            if has_ended(pid):
                raise BrokerError(f"nats-server ended at once: {self._last_error(output)}")
            time.sleep(_POLL_S)
        end(pid, str(self._config_path), _STOP_PATIENCE_S)
        raise BrokerError(f"nats-server was not ready after {_START_TIMEOUT_S:g} s: see {output}")

    def _last_error(self, output: Path) -> str:
        logs = [path.read_bytes() for path in (output, self._server.log) if path.exists()]
        text = b"".join(logs).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        fatal = [line.partition(_FATAL)[2].strip() for line in lines if _FATAL in line]
        return (fatal or lines or [f"see {output}"])[-1]

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep a second Weaver on the same state folder from starting a second server."""
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
