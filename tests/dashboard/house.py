"""A dashboard's application that is served in this process, and the browsers that come to it."""

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from urllib.parse import urlsplit

from websockets.asyncio.client import connect

from tests.dashboard.workers import hello
from tests.deadlines import DEADLINE_S
from tests.waiting import soon
from torchloom_core.config.services import Dashboard
from torchloom_core.floor.web_server import served, url_of
from torchloom_core.live.dashboard import app, serve
from torchloom_core.live.dashboard.auth import SessionKeys
from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.run_state import RunState

BULK = "x" * 200_000
TEXT = 0x81
WITHIN_126 = 126


class Counted(Board):
    """A board that counts how often a page is update of a worker."""

    def __init__(self):
        super().__init__(stale_after_s=1e9)
        self.update = Counter()

    def worker(self, row, now_s):
        self.update[self.places[row].worker] += 1
        return super().worker(row, now_s)


class House:
    """A dashboard's application that is served in this process, and who comes to it."""

    def __init__(self, seen, url, keys, open_sockets):
        self.state = seen
        self._url = url
        self._keys = keys
        self._cookie = self.let_in()
        self._open = open_sockets

    def let_in(self):
        """Return the cookie of another browser."""
        return f"torchloom-run={self._keys.redeem(self._keys.token)}"

    async def enter(self, compression=None, cookie=None):
        """Return a browser's socket, of the first browser unless another's cookie is given."""
        opened = connect(
            f"{self._url.replace('http', 'ws')}/live",
            origin=self._url,
            additional_headers={"cookie": cookie or self._cookie},
            compression=compression,
            open_timeout=DEADLINE_S,
            ping_interval=None,
            max_size=None,
            max_queue=None,
        )
        return await soon(self._open.enter_async_context(opened))

    async def freeze(self, look):
        """Open the socket of a browser that says what it looks at, and then takes nothing."""
        loop, where = asyncio.get_running_loop(), urlsplit(self._url)
        raw = self._open.enter_context(socket.socket())
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await soon(loop.sock_connect(raw, (where.hostname, where.port)))
        lines = [
            "GET /live HTTP/1.1",
            f"Host: {where.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version: 13",
            f"Origin: {self._url}",
            f"Cookie: {self._cookie}",
        ]
        said = json.dumps(look).encode()
        assert len(said) < WITHIN_126
        unmasked = struct.pack("<BB4x", TEXT, 0x80 | len(said))  # by a mask of zeros
        await soon(loop.sock_sendall(raw, "\r\n".join([*lines, "", ""]).encode()))
        assert b" 101 " in await soon(loop.sock_recv(raw, 64))
        await soon(loop.sock_sendall(raw, unmasked + said))

    def change(self, text):
        """Have something new to show, and a lot of it."""
        self.state.trouble = text
        self.state.knobs = [{"name": "x", "doc": BULK}]
        self.state.knobs_version += 1


@contextlib.asynccontextmanager
async def open_house(folder, **options):
    keys, seen = SessionKeys(folder), RunState(1e9, "")
    seen.board = Counted()
    for worker in ("g0-0", "g1-0"):
        seen.board.add(hello(worker), seen.now_s)
    with serve._listener(Dashboard(port=0)) as found:
        url = url_of(found)
        hosts = serve.hosts_of("127.0.0.1", ())
        made = app.application(seen, None, keys, "run", hosts, secure=False, on_entry=lambda: None)
        update = serve._OPTIONS | options
        async with served(made, found, **update), contextlib.AsyncExitStack() as sockets:
            yield House(seen, url, keys, sockets)


async def sees(browser_socket, what):
    """Take what comes until a message is as ``what`` says, and return it, read.

    ConnectionClosed if none is any more.
    """
    while True:
        message = await soon(browser_socket.recv())
        if isinstance(message, str) and what(update := json.loads(message)):
            return update
