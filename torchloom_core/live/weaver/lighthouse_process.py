"""The run's lighthouse, a separate process that the Weaver starts, adopts and restarts.

It keeps running when the Weaver ends, as long as replica groups use it: training does not stop
with its controller.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec

from torchloom_core.config.services import Lighthouse
from torchloom_core.floor.errors import BrokerError, LighthouseError, StateError
from torchloom_core.floor.files import private_folder, write_private
from torchloom_core.floor.server_urls import LOGIN, login_of, shown
from torchloom_core.floor.tls import NO_TLS, TlsFiles
from torchloom_core.live.transport.detached_process import (
    end,
    has_ended,
    is_running,
    is_stopped,
    read_record,
    start_detached,
)
from torchloom_core.live.transport.lighthouse_place import LighthousePlace
from torchloom_core.live.transport.ports import is_free, lasting_port

_log = logging.getLogger(__name__)

_START_S = 30.0
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_STOP_S = 5.0
_POLL_S = 0.02
_ASK_S = 0.1
_GOES_ON = "keeps running for the groups that train: kill"
_WATCH_S = 0.1
_RETRY_S = 1.0
_RETIRE_S = 5.0


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """``lighthouse.json``: the process that was started last."""

    pid: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    command: tuple[str, ...]


class LighthouseProcess:
    """One lighthouse per state folder; its state, log and address are in ``lighthouse/``."""

    def __init__(self, state_dir: Path, run: str, settings: Lighthouse) -> None:
        self._folder = state_dir.absolute() / "lighthouse"
        self._state = self._folder / "state.json"
        self._record_path = self._folder / "lighthouse.json"
        self._run = run
        self._settings = settings
        self._record: _Record | None = None
        self._broker: tuple[str, Path | None, TlsFiles] = "", None, NO_TLS
        self._expected: Callable[[], Iterable[str]] = tuple
        self._place: LighthousePlace | None = None
        self._elsewhere = ""
        self._declared_port = 0

    @property
    def url(self) -> str:
        """Where Managers connect, or with a certificate their relays."""
        return self._elsewhere or self._own_url

    @property
    def _own_url(self) -> str:
        return self._url_at(self._record.port if self._record else self._settings.port)

    def _url_at(self, port: int) -> str:
        host = self._settings.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        scheme = "https" if self._settings.certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(
        self,
        url: str,
        creds: Path | None,
        expected: Callable[[], Iterable[str]],
        place: LighthousePlace,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        """Adopt the run's lighthouse, or start one that waits for ``expected``.

        One on another host is adopted, too, until it answers no more.
        """
        self._broker, self._expected = (url, creds, tls), expected
        if find_spec("grpc") is None:
            raise LighthouseError('lighthouse: pip install "torchloom[lighthouse]"')
        private_folder(self._folder)
        self._place = place
        self._elsewhere = await place.elsewhere(self._folder)
        if not self._elsewhere:
            await self._adopt_or_launch()

    async def retire(self, place: LighthousePlace) -> NoReturn:
        """End the lighthouse of this state folder once another one serves; a standby does."""
        while True:
            await asyncio.sleep(_RETIRE_S)
            try:
                last = read_record(self._record_path, _Record)
                if last and is_running(last.pid, str(self._state)):
                    self._record = last
                    other = await place.elsewhere(self._folder)
                    if other and await place.answers(other):
                        _log.warning("another lighthouse serves the run: ending pid %d", last.pid)
                        await asyncio.to_thread(end, last.pid, str(self._state), _STOP_S)
            except (BrokerError, StateError, OSError) as error:
                _log.warning("the lighthouse of this host: %s", error)

    async def _replace(self) -> None:
        """Start a lighthouse here in place of one on another host, without an old state."""
        last = read_record(self._record_path, _Record)
        if last is not None:
            await asyncio.to_thread(end, last.pid, str(self._state), _STOP_S)
        self._drop_state()
        gone, port = self._elsewhere, self._port(last, runs=False)
        if await self._declared(port, instead_of=gone):
            self._record = None
            await self._launch(port, last)
            _log.warning("the lighthouse at %s is gone: started %s", gone, self._own_url)

    async def _declared(self, port: int, *, instead_of: str = "") -> bool:
        """Declare the lighthouse that is to run at this port, unless another one is meanwhile.

        Before it starts: groups may use it as soon as it runs, and a later leader must not go back
        to the state of the one before, whose last quorum's id is used up then. If this process is
        frozen in between, another one is declared later, and relays do not leave that one.
        """
        if self._place is not None:
            url = self._url_at(port)
            self._elsewhere = await self._place.take(url, self._folder, instead_of=instead_of)
        self._declared_port = port
        return not self._elsewhere

    def _drop_state(self) -> None:
        for path in (self._state, self._state.with_name(f"{self._state.name}.last")):
            path.unlink(missing_ok=True)

    async def _adopt_or_launch(self) -> None:
        last = read_record(self._record_path, _Record) or self._record
        runs = last is not None and is_running(last.pid, str(self._state))
        port = self._port(last, runs=runs)
        if port != self._declared_port:
            if not runs and self._place is not None and not self._place.was_ours:
                self._drop_state()  # of a reign before that of a lighthouse that is not known
            if not await self._declared(port):
                return
        if last and runs:
            if last.command == tuple(self._command(port)):
                self._record = last
                return
            _log.warning("lighthouse (pid %d) has another config: restarting it", last.pid)
            await asyncio.to_thread(end, last.pid, str(self._state), _STOP_S)
        await self._launch(port, last)

    def _port(self, last: _Record | None, *, runs: bool) -> int:
        host = self._settings.host
        port = self._settings.port or (last.port if last else 0)
        if port and (self._settings.port or runs or self._record or is_free(host, port)):
            return port
        return lasting_port(host)

    async def _launch(self, port: int, last: _Record | None) -> None:
        command = self._command(port)
        # The names come from workers: those unfit for a command line are left out.
        expected = sorted(self._expected())
        wait_for = [f"--expect={name}" for name in expected if _PLAIN.fullmatch(name)]
        log = self._folder / "lighthouse.log"
        own = {LOGIN: login_of(self._broker[0])}
        since = [f"--since={self._place.since_ns}"] if self._place else []
        pid = start_detached([*command, *since, *wait_for], log, {**os.environ, **own})
        before = self._record
        self._record = _Record(pid=pid, port=port, command=tuple(command))
        try:
            # Before it is ready, so that the next Weaver finds it if this one is killed.
            self._keep(self._record)
            await self._until_it_listens(pid, log)
        except (LighthouseError, StateError):
            await asyncio.to_thread(end, pid, str(self._state), _STOP_S)
            self._record = before
            if last is not None:
                with suppress(StateError):
                    self._keep(last)
            raise

    async def supervise(self) -> None:
        """Restart it at the same address whenever it ends. Runs until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            record, gone = self._record, self._elsewhere
            if self._place is not None and gone:
                try:
                    if await self._place.is_gone(gone):
                        await self._replace()
                except (BrokerError, LighthouseError, StateError, OSError) as error:
                    _log.warning("the lighthouse at %s is gone: %s", gone, error)
                    await asyncio.sleep(_RETRY_S)
                continue
            if record and is_running(record.pid, str(self._state)):
                continue
            which = f"(pid {record.pid}) ended" if record else "of this host does not run"
            try:
                await self._adopt_or_launch()
            except (LighthouseError, StateError, OSError, RuntimeError, ValueError) as error:
                _log.warning("the lighthouse %s: %s", which, error)
                await asyncio.sleep(_RETRY_S)
            else:
                done = "another one serves the run" if self._elsewhere else "it was restarted"
                _log.warning("the lighthouse %s: %s", which, done)

    async def stop_unless_needed(self) -> None:
        """End this host's unless replica groups use it, also one that serves another Weaver.

        As the groups may be ending, the signal is repeated.
        """
        deadline = time.monotonic() + _STOP_S
        with suppress(StateError):
            self._record = read_record(self._record_path, _Record) or self._record
        while self._record and is_running(self._record.pid, str(self._state)):
            pid = self._record.pid
            if time.monotonic() > deadline:
                how = "is frozen: kill -9" if is_stopped(pid) else _GOES_ON
                _log.warning("the lighthouse %s %d ends it", how, pid)
                return
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
            await asyncio.sleep(_ASK_S)

    def _command(self, port: int) -> list[str]:
        settings, (url, creds, broker_tls) = self._settings, self._broker
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        status = f"127.0.0.1:{settings.status_port}" if settings.status_port else ""
        command = [sys.executable, "-m", "torchloom_core.cli", "lighthouse"]
        command += ["--bind", f"{host}:{port}", "--status_bind", status]
        command += ["--min_replicas", str(settings.min_replicas)]
        for name in ("join_timeout", "heartbeat_timeout", "quorum_tick"):
            command += [f"--{name}_ms", str(max(1, round(getattr(settings, f"{name}_s") * 1000)))]
        command += ["--run", self._run, "--state", str(self._state), "--url", shown(url)]
        for option, files in (("", settings.tls), ("url-", broker_tls)):
            for name in ("certificate", "key", "ca"):
                path = getattr(files, name)
                command += [f"--{option}{name}", str(Path(path).absolute())] if path else []
        return [*command, "--creds", str(creds)] if creds else command

    def _keep(self, record: _Record) -> None:
        write_private(self._record_path, msgspec.json.encode(record).decode())

    async def _until_it_listens(self, pid: int, log: Path) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if has_ended(pid):
                last = (_lines(log) or [f"see {log}"])[-1]
                raise LighthouseError(f"the lighthouse ended at once: {last}")
            if any("is ready on" in line for line in _lines(log)):
                return
            await asyncio.sleep(_POLL_S)
        raise LighthouseError(f"the lighthouse was not ready after {_START_S:g} s: see {log}")


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").strip().splitlines()
