"""The sidecar's connection to the broker: enrols, connects and reconnects."""

import asyncio
import contextlib
import hashlib
import logging
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import nats.errors
import nkeys
from nats.aio.client import Client, RawCredentials

from torchloom_core.floor.errors import ConfigError, MessageError
from torchloom_core.floor.nats_client import NatsClient
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.server_urls import shown
from torchloom_core.floor.tls import SECURE, TlsFiles, client_context, fault_of
from torchloom_core.wire import subjects
from torchloom_core.wire.messages import Hello, JoinFile, JoinReply, JoinRequest, version_fault
from torchloom_threadlet.identity import read_join
from torchloom_threadlet.ipc import Keys
from torchloom_threadlet.sidecar.backoff import Backoff
from torchloom_threadlet.sidecar.joining import BROKER_ERRORS, Joiner, closed

_CONNECT_S = 10.0
_POLL_S = 0.2
_RECONNECT_WAITS_S = (0.1, 5.0)
_LOOK_S = 0.5
_SETTLES_S = 1.0
_ENROL_WAITS_S = (0.2, 5.0)
_LONGEST_WAIT_S = 60.0
_REFUSED_WAIT_S = 5.0
_REFUSALS = 3
_REFUSED = ("authorization violation", "authentication expired", "authentication revoked")
"""Errors of a server that knows the worker no longer; it has another for one that is too slow."""

_MARK_BYTES = 12

_CREDS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""

_logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The Weaver gives this worker no credentials."""


class OtherRunError(Exception):
    """The join file names another run now, and this worker never joined the one before."""


class UnwantedError(RefusedError):
    """The Weaver admits no worker on this worker's node."""


class Connection:
    """One worker's connection to the broker.

    ``unset``: what to set so that no other process gets this worker's name.
    ``on_admission``: called after each attempt to enrol, with the reason why this worker is not
    admitted on its node; empty if it is admitted, or there was no answer.
    ``unwanted``: whether the last answer was that this worker's node admits no worker.
    """

    def __init__(
        self,
        hello: Hello,
        join: JoinFile,
        join_path: Path,
        keys: Keys | None,
        unset: str,
        on_up: Callable[[Client], Awaitable[None]],
        on_keys: Callable[[Keys], None],
        on_admission: Callable[[str], None],
    ) -> None:
        self._hello = hello
        self._join = join
        self._join_path = join_path
        self._keys = keys or Keys(seed="")
        self._unset = unset
        self._was_up = False
        self._settled_s = 0.0
        self._on_up = on_up
        self._on_keys = on_keys
        self._on_admission = on_admission
        self._refusals = 0
        self._again = Backoff(*_RECONNECT_WAITS_S)
        self.unwanted = False
        self._last_line = ""
        self._tls_fault = ""
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._look = asyncio.Event()

    @property
    def client(self) -> Client | None:
        """The client if it is connected now."""
        return self._client if self._client is not None and self._client.is_connected else None

    @property
    def settled_client(self) -> Client | None:
        """The client once the Weaver has had time to connect again, too: it may come later."""
        settled = asyncio.get_running_loop().time() >= self._settled_s
        return self.client if settled else None

    @property
    def mark(self) -> str:
        """A prefix that only this worker can write, the same in all its sidecars; "" without keys.

        A stream deduplicates messages by id alone, whichever worker sent the first.
        """
        seed = self._keys.seed.encode()
        return hashlib.blake2b(seed, digest_size=_MARK_BYTES).hexdigest() if seed else ""

    async def connected(self) -> Client:
        """Wait for the broker."""
        while (client := self.client) is None:
            await self._up.wait()
            if self.client is None:
                await asyncio.sleep(_POLL_S)
        return client

    async def run(self) -> None:
        """Stay connected for ever."""
        while True:
            try:
                if not self._join.enrol:
                    await self._check_name()
                elif not self._keys.jwt:
                    await self._enrol()
                self.unwanted = False
                self._on_admission("")
                await self._stay_connected()
            except RefusedError as error:
                self.unwanted = isinstance(error, UnwantedError)
                self._on_admission(str(error) if self.unwanted else "")
                if not self.unwanted:  # the trainer reports this itself
                    self._log("the Weaver refuses this worker: %s", error)
                await asyncio.sleep(_REFUSED_WAIT_S * random.uniform(0.5, 1.5))
            except (
                *BROKER_ERRORS,
                ConfigError,
                MessageError,
                ValueError,
                nkeys.NkeysError,
            ) as error:
                # nats-py raises ValueError for a malformed URL or credentials.
                self._on_admission("")
                why = self._tls_fault or error
                self._log("cannot use the broker at %s: %s", shown(self._join.url), why)
            await asyncio.sleep(self._again.next_s())
            self._look_for_a_new_weaver()

    async def close(self) -> None:
        """Close the connection, sending what is buffered."""
        if self._client is not None:
            await closed(self._client)

    async def _enrol(self) -> None:
        """Get credentials for this worker, waiting for the Weaver as long as it takes."""
        request = self._request()
        backoff = Backoff(*_ENROL_WAITS_S)
        async with Joiner(self._connect_to_join) as joiner:
            while True:
                try:
                    reply = await joiner.ask(request)
                    if not reply.wait_s:
                        break
                    self._log("many workers enrol at once: %s enrols later", self._hello.worker)
                    wait_s = min(reply.wait_s, _LONGEST_WAIT_S)
                except BROKER_ERRORS as error:
                    self._on_admission("")
                    where = f"{self._hello.run} at {shown(self._join.url)}"
                    why = self._tls_fault or error
                    self._log("waiting for the Weaver of run %s: %s", where, why)
                    wait_s = backoff.next_s()
                await asyncio.sleep(wait_s)
                if self._look_for_a_new_weaver():
                    await joiner.close()
        if not reply.jwt or version_fault(reply.v):
            raise self._refusal(reply)
        self._store(Keys(seed=self._keys.seed, jwt=reply.jwt))

    async def _check_name(self) -> None:
        """Ask whether another process has the name; without an answer it is this one's."""
        with contextlib.suppress(*BROKER_ERRORS):
            async with Joiner(self._connect_to_join) as joiner:
                reply = await joiner.ask(self._request())
            if reply.error or version_fault(reply.v):
                raise self._refusal(reply)

    def _refusal(self, reply: JoinReply) -> RefusedError:
        kind = UnwantedError if reply.unwanted else RefusedError
        reason = reply.error or version_fault(reply.v) or "it gave no reason"
        return kind(f"{reason}; {self._unset}" if reply.taken and self._unset else reason)

    def _request(self) -> JoinRequest:
        if not self._keys.seed:
            seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
            self._store(Keys(seed=seed.decode()))
        return JoinRequest(
            run=self._hello.run,
            worker=self._hello.worker,
            incarnation=self._hello.incarnation,
            public_key=nkeys.from_seed(bytearray(self._keys.seed.encode())).public_key.decode(),
            group=self._hello.group,
            node=self._hello.node,
        )

    def _store(self, keys: Keys) -> None:
        self._keys, self._refusals = keys, 0
        self._on_keys(keys)

    async def _connect_to_join(self, client: NatsClient) -> None:
        inbox = subjects.join_inbox(self._hello.run)
        await self._connect(client, self._join.creds, inbox, reconnect=False)

    async def _stay_connected(self) -> None:
        """Stay connected until the server or a new Weaver makes another connection necessary."""
        keys = self._keys
        creds = _CREDS.format(jwt=keys.jwt, seed=keys.seed) if keys.jwt else self._join.creds
        hello = self._hello
        inbox = subjects.inbox_prefix(hello.run, hello.worker, hello.incarnation)
        client = NatsClient()
        connecting = asyncio.create_task(self._connect(client, creds, inbox, reconnect=True))
        connecting.add_done_callback(lambda _: self._look.set())
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._look.wait(), _LOOK_S)
                self._look.clear()
                if self._client is None and connecting.done():
                    connecting.result()
                    self._client = client
                    await self._reached()
                if self.client is not None:
                    continue
                if self._client is not None and client.is_closed:
                    return  # nats-py reconnects after no error but the loss of the connection
                if self._refusals >= _REFUSALS:
                    self._log("the broker at %s no longer knows this worker", shown(self._join.url))
                    self._store(Keys(seed=keys.seed))
                    return
                if self._look_for_a_new_weaver():
                    return
        finally:
            self._up.clear()
            self._client = None
            connecting.cancel()
            await closed(client)

    async def _connect(
        self, client: Client, creds: str, inbox_prefix: str, *, reconnect: bool
    ) -> None:
        join, secure = self._join, {}
        if SECURE in join.url:
            own = TlsFiles(join.certificate, join.key, place=str(self._join_path))
            secure["tls"] = client_context(own, join.ca)
        self._tls_fault = ""
        try:
            await client.connect(
                join.url,
                **secure,
                user_credentials=RawCredentials(creds) if creds else None,
                inbox_prefix=inbox_prefix,
                name=f"torchloom threadlet {self._hello.worker}",
                allow_reconnect=reconnect,
                max_reconnect_attempts=-1 if reconnect else 1,
                reconnect_time_wait=self._again.next_s(),
                connect_timeout=_CONNECT_S,
                ping_interval=10,
                error_cb=partial(self._on_error, client),
                disconnected_cb=self._on_disconnect,
                reconnected_cb=self._reached,
            )
        except (AttributeError, KeyError, TypeError) as error:
            # nats-py raises these for a greeting with a field of another type.
            raise nats.errors.Error(f"not a NATS server: {error}") from None

    async def _on_error(self, client: Client, error: Exception) -> None:
        self._refusals += any(text in str(error).lower() for text in _REFUSED)
        self._tls_fault = fault_of(error) or self._tls_fault
        if not client.is_connected:  # it reads this before each attempt
            client.options["reconnect_time_wait"] = self._again.next_s()
        _logger.debug("broker: %s", error)

    async def _on_disconnect(self) -> None:
        self._up.clear()

    async def _reached(self) -> None:
        if self._client is None:
            return
        self._refusals = 0
        self._again.reset()
        self._last_line = ""
        if self._was_up:
            self._settled_s = asyncio.get_running_loop().time() + _SETTLES_S
        self._was_up = True
        self._up.set()
        await self._on_up(self._client)

    def _look_for_a_new_weaver(self) -> bool:
        """Read ``join.json`` again and return whether it has changed.

        Raises OtherRunError if the old file was an earlier run's, and this worker never joined that
        run.
        """
        join = read_join(self._join_path)
        if join is None or join == self._join:
            return False
        if join.run != self._hello.run:
            if self._keys.jwt or self._was_up:
                return False
            raise OtherRunError(
                f"{self._join_path} now names run {join.run}, was {self._hello.run}"
            )
        if (join.creds, join.enrol) != (self._join.creds, self._join.enrol):
            self._store(Keys(seed=self._keys.seed))
        self._join = join
        return True

    def _log(self, text: str, *values: object) -> None:
        """Log a state once, however often it is found."""
        line = text % values
        if line != self._last_line:
            self._last_line = line
            _logger.warning("%s", plain_line(line))
