"""One NATS connection: a clear error if it cannot be made, and endless reconnects afterwards."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import nats.errors
import nats.js.errors

from torchloom_core.floor.errors import BrokerError, ConfigError, RefusedByBrokerError
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.nats_client import BulkClient, GuardedClient, NatsClient
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.floor.server_urls import login_of, shown
from torchloom_core.floor.tls import NO_TLS, SECURE, Renewal, TlsFiles, client_context, fault_of
from torchloom_core.live.transport.broker.binary import check_version
from torchloom_core.wire.limits import CREDS

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
Admits = Callable[[str, int, bytes], bool]
Take = Callable[[bytes, bytes | memoryview], None]

_CONNECT_TIMEOUT_S = 5
_CONNECT_ALL_S = 60.0
"""How long all servers of a cluster are tried."""
_RECONNECT_WAIT_S = 0.2
PING_EVERY_S = 10
_CLOSE_S = 5.0
_FOREVER = -1

RETRY_S = 20.0
"""How long a request is repeated during a restart of the broker."""

_RETRY_WAIT_S = 0.1
_DENIAL = "permissions violation"
_REFUSAL = "authorization violation"
_FINAL_ERRORS = (
    nats.errors.BadSubjectError,
    nats.errors.ConnectionClosedError,
    nats.errors.MaxPayloadError,
    nats.js.errors.BadRequestError,
    nats.js.errors.InvalidKeyError,
    nats.js.errors.NotFoundError,
)
"""Errors for which a retry is useless."""

_FULL = frozenset({10002, 10023, 10026, 10027, 10028, 10047, 10077, 10122})
"""Error codes for a limit of the server or the account, or no space: waited for, however long."""

_FULL_WAIT_S = 1.0


class Connection:
    """A connected client; made by :meth:`open`."""

    def __init__(self, url: str, name: str, client: NatsClient, tls: TlsFiles) -> None:
        self._url = shown(url)
        self._tls = tls
        self._renewal: Renewal | None = None
        self._servers = url
        self._name = name
        self._connected = asyncio.Event()
        self._closing = False
        self._last_error: Exception | None = None
        self._is_refused = asyncio.Event()
        self._denied: asyncio.Event | None = None
        self._limited_log = RateLimitedLog(_log)
        self.full = ""
        """What waits for space on the server; empty: nothing."""
        self._on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self.others: Callable[[], Sequence[Connection]] = tuple
        """Those that leave a server which this one has lost; they would notice it later."""
        self.client = client

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        creds: Path | None,
        name: str,
        inbox_prefix: str,
        patience_s: float = 0.0,
        admits: Admits | None = None,
        take: Take | None = None,
        tls: TlsFiles = NO_TLS,
        ping_every_s: int = PING_EVERY_S,
        in_order: bool = False,
    ) -> "Connection":
        """Connect within ``patience_s``, or raise BrokerError.

        ``admits(subject, bytes, headers)`` filters messages. ``take(subject, data)`` receives all
        messages, in the place of the subscriptions' callbacks. A server that does not answer three
        pings is left for another one; ``in_order``: for the next of the URLs, not for any.
        """
        if creds is not None:
            _check_creds(creds)
        clock = asyncio.get_running_loop()
        deadline = clock.time() + patience_s
        while True:
            link = cls(url, name, _client(admits, take), tls)
            try:
                await link._connect(creds, inbox_prefix, ping_every_s, in_order=in_order)
                check_version(str(link.client._server_info.get("version", "none")), link._url)
            except BrokerError:
                await link.close()
                if clock.time() >= deadline:
                    raise
                await asyncio.sleep(_RETRY_WAIT_S)
            else:
                return link

    @property
    def is_connected(self) -> bool:
        """Whether a message published now is sent now."""
        return bool(self.client.is_connected)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback`` after each reconnect."""
        self._on_reconnect.append(callback)

    async def persist(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat ``call`` until it succeeds, also during a restart of the broker.

        ``what`` names it in errors. While disconnected nothing is passed to the client, so that its
        buffer cannot fill up. While the server has no space, this waits for it, however long that
        takes. BrokerError if it has not succeeded after ``RETRY_S`` otherwise, RefusedByBrokerError
        if no retry can succeed.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + RETRY_S
        reason: Exception = nats.errors.ConnectionReconnectingError()
        while clock.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connected.wait()
                done = await call()
            except (*_FINAL_ERRORS, nats.errors.Error, TimeoutError) as error:
                if _is_full(error):
                    self._note_full(what, error)
                    deadline = clock.time() + RETRY_S + _FULL_WAIT_S
                    await asyncio.sleep(_FULL_WAIT_S)
                    continue
                if isinstance(error, _FINAL_ERRORS):
                    line = f"{self._url}: {what}: {_one_line(error)}"
                    raise RefusedByBrokerError(line) from None
                if isinstance(error, nats.errors.Error) or self.is_connected:
                    reason = error
                await asyncio.sleep(_RETRY_WAIT_S)
            else:
                if self.full == what:
                    _log.warning("%s: %s: there is space again", self._url, what)
                    self.full = ""
                return done
        raise BrokerError(
            f"{self._url}: {what}: need an answer within {RETRY_S:g} s, was {_one_line(reason)}"
        )

    async def connected(self) -> None:
        """Wait until the broker is connected."""
        await self._connected.wait()

    async def attempt(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Do the same as :meth:`persist`, but once."""
        try:
            return await call()
        except _FINAL_ERRORS as error:
            raise RefusedByBrokerError(f"{self._url}: {what}: {_one_line(error)}") from None
        except (nats.errors.Error, TimeoutError) as error:
            raise BrokerError(f"{self._url}: {what}: {_one_line(error)}") from None

    async def persist_if_allowed(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        """Do the same as :meth:`persist`, but fail at once if the server denies permission."""
        self._denied = asyncio.Event()
        try:
            if await first_done(self.persist(what, call), self._denied.wait()):
                why = _one_line(self._last_error or Exception())
                need = "need credentials with a Weaver's permissions"
                raise BrokerError(f"{self._url}: {need}: {why}")
        finally:
            self._denied = None

    async def settle(self) -> None:
        """Return once the server has handled all so far; BrokerError after ``RETRY_S``."""
        await self.persist("wait for the server", self._flush)

    async def close(self) -> None:
        """Send what is buffered, if the server is connected, and disconnect."""
        self._closing = True
        # nats-py asserts that a client was connected once, which fails for a malformed URL.
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self.is_connected:
                    await self._flush()
                with suppress(AssertionError):
                    await self.client.close()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            _log.warning("%s: unsent messages were lost: %s", self._url, _one_line(error))

    async def _flush(self) -> None:
        # The client's first PING may overtake its buffered messages; the second one cannot.
        await self.client.flush()
        await self.client.flush()

    @property
    def _server(self) -> str:
        """The address of the server, also while the connection to it is lost."""
        server = self.client._current_server
        return str(server.uri.netloc) if server is not None else ""

    async def _connect(
        self, creds: Path | None, inbox_prefix: str, ping_every_s: int, *, in_order: bool
    ) -> None:
        secure = {}
        if SECURE in self._url:
            try:
                secure["tls"] = context = client_context(self._tls)
            except ConfigError as error:
                raise BrokerError(str(error)) from None
            self._renewal = Renewal(context, self._tls)
        connecting = partial(
            self.client.connect,
            self._servers,
            **secure,
            name=self._name,
            inbox_prefix=inbox_prefix,
            user_credentials=None if creds is None else str(creds),
            connect_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=ping_every_s,
            dont_randomize=in_order,
            reconnect_time_wait=_RECONNECT_WAIT_S,
            max_reconnect_attempts=1,
            error_cb=self._note_error,
            disconnected_cb=self._note_disconnect,
            reconnected_cb=self._note_reconnect,
            closed_cb=self._note_closed,
        )
        try:
            # nats-py hangs once the second server of a cluster has refused it, too.
            async with asyncio.timeout(_CONNECT_ALL_S):
                await first_done(self._refused(), connecting())
        except (OSError, ValueError, nats.errors.Error) as error:
            raise BrokerError(self._explain(self._last_error or error, creds)) from None
        # Set after the connect: before, the client would wait forever for its first server.
        self.client.options["max_reconnect_attempts"] = _FOREVER
        self._connected.set()

    async def _refused(self) -> None:
        """Raise the error with which a server refuses the credentials, if one does."""
        await self._is_refused.wait()
        raise self._last_error or nats.errors.AuthorizationError()

    def _explain(self, error: Exception, creds: Path | None) -> str:
        # A server that refuses closes at once; the connection reset may overtake its reason.
        cut_off = isinstance(error, ConnectionError) and self.client._server_info.get(
            "auth_required"
        )
        if cut_off or _REFUSAL in str(error).lower():
            given = "none were given" if creds is None else f"it refuses those in {creds}"
            if creds is None and login_of(self._servers):
                given = "it refuses the user and password in the URL"
            return f"{self._url}: need credentials the server accepts, {given}"
        why = fault_of(error, self._tls.ca) or _one_line(error)
        return f"{self._url}: no NATS server can be reached: {why}"

    def _note_full(self, what: str, error: Exception) -> None:
        self.full = what
        text = f"{self._url}: {what}: waits until the server has space: {_one_line(error)}"
        self._limited_log.add("full", text)

    async def _note_error(self, error: Exception) -> None:
        if self._connected.is_set() or not self._is_refused.is_set():
            self._last_error = error
        if not self._connected.is_set() and _REFUSAL in str(error).lower():
            self._is_refused.set()
        if self._denied is not None and _DENIAL in str(error).lower():
            self._denied.set()
        elif self._closing or not self._connected.is_set():
            _log.debug("%s: %s", self._url, _one_line(error))
        elif isinstance(error, nats.errors.Error | OSError):
            _log.warning("%s: %s", self._url, _one_line(error))
        else:
            _log.error("%s: a message could not be handled", self._url, exc_info=error)

    async def _note_disconnect(self) -> None:
        if self._connected.is_set() and not self._closing:
            _log.warning("%s: connection lost; reconnecting", self._url)
        self._connected.clear()
        for other in () if self._closing else self.others():
            if other._server == self._server:
                await other.client.force_reconnect()
        if self._renewal is not None:
            self._renewal.check()

    async def _note_reconnect(self) -> None:
        _log.info("%s: reconnected", self._url)
        self._connected.set()
        for callback in self._on_reconnect:
            try:
                await callback()
            except BrokerError as error:
                _log.warning("after the reconnect: %s", error)

    async def _note_closed(self) -> None:
        if not self._closing and self._connected.is_set():
            _log.error("%s: the server closed the connection, and it is not restored", self._url)


def _client(admits: Admits | None, take: Take | None) -> NatsClient:
    if take is not None:
        return BulkClient(take)
    return NatsClient() if admits is None else GuardedClient(admits)


def _check_creds(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BrokerError(f"{path}: credentials cannot be read: {reason}") from None
    if not text or not re.search(CREDS, text):
        raise BrokerError(f"{path}: need a NATS credentials file, with a user JWT and its seed")


def _is_full(error: Exception) -> bool:
    return isinstance(error, nats.js.errors.APIError) and error.err_code in _FULL


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
