"""Closes connections of other clients, by requests that a server answers to its own operator."""

import asyncio
import logging

import msgspec
import nats.errors

from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.join_gate import Sender
from torchloom_core.live.transport.security import rights
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_ANSWERED_S = 2.0
_MOST_AT_ONCE = 100


class _Server(msgspec.Struct):
    id: str


class ConnectionCloser:
    """Asks the server of a connection to close it."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._id_of: dict[str, str] = {}
        self._closing: dict[Sender, asyncio.Task[None]] = {}
        self._limited_log = RateLimitedLog(_log)

    def close(self, sender: Sender) -> None:
        """Close a client's connection soon; a failure is logged."""
        if sender in self._closing or len(self._closing) >= _MOST_AT_ONCE:
            return
        self._closing[sender] = task = asyncio.create_task(self._close(sender))
        task.add_done_callback(lambda _: self._closing.pop(sender, None))

    async def end(self) -> None:
        """Close no more connections."""
        await end_all(*self._closing.values())

    async def _close(self, sender: Sender) -> None:
        client, name = self._link.client, sender.server
        try:
            if name not in self._id_of:
                asked = msgspec.json.encode({"server_name": name, "exact_match": True})
                answer = await client.request(rights.FIND_SERVER, asked, timeout=_ANSWERED_S)
                self._id_of[name] = msgspec.json.decode(answer.data, type=_Server).id
            to = rights.CLOSE_CONNECTION.replace("*", self._id_of[name])
            asked = msgspec.json.encode({"cid": sender.number})
            await client.request(to, asked, timeout=_ANSWERED_S)
        except (nats.errors.Error, TimeoutError, *UNREADABLE) as error:
            self._id_of.pop(name, None)  # a server that was restarted has another
            text = f"a connection from {sender.host} cannot be closed: {error or 'no answer'}"
            self._limited_log.add("", text)
