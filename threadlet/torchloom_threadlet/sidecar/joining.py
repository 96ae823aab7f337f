"""Asks the Weaver for a worker's credentials, over one connection for all attempts."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec
import nats.errors
from nats.aio.client import Client

from torchloom_core.floor.nats_client import NatsClient
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.messages import JoinReply, JoinRequest

BROKER_ERRORS = (nats.errors.Error, OSError, asyncio.TimeoutError)
"""The errors of a call to the broker while the broker is away."""

_WITHIN_S = (2.0, 10.0)
_LONGER = 1.5


class Joiner:
    """A connection with the run's join credentials, made by ``connect`` when it is needed.

    It is kept after a failed attempt: a server spends more on authentication than on a request.
    """

    def __init__(self, connect: Callable[[NatsClient], Awaitable[None]]) -> None:
        self._connect = connect
        self._client: NatsClient | None = None
        self._within_s = _WITHIN_S[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(self, request: JoinRequest) -> JoinReply:
        """Return the Weaver's answer, or raise the client's error or MessageError.

        Each attempt has more time than the one before.
        """
        within_s = self._within_s
        self._within_s = min(_LONGER * within_s, _WITHIN_S[1])
        if self._client is None or not self._client.is_connected:
            await self.close()
            self._client = NatsClient()
            await self._connect(self._client)
        data = encode(msgspec.structs.replace(request, within_s=within_s))
        answer = await self._client.request(subjects.join(request.run), data, timeout=within_s)
        return decode_json(JoinReply, bytes(answer.data), "join reply")

    async def close(self) -> None:
        """Close the connection; the next attempt makes another."""
        client, self._client = self._client, None
        if client is not None:
            await closed(client)


async def closed(client: Client) -> None:
    """Close a client, whatever state it is in."""
    # nats-py asserts that a client it closes had a server, which a malformed URL has not.
    with contextlib.suppress(*BROKER_ERRORS, AssertionError):
        await client.close()
