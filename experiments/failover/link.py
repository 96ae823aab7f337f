"""The network between one Weaver and the server: it can be cut, as by a switch that fails."""

import asyncio
from contextlib import suppress

from torchloom_core.live.transport.ports import lasting_port

_AT_ONCE = 1 << 16


class Link:
    """Forwards a port. While it is cut nothing passes, and no connection ends."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._whole = asyncio.Event()
        self._whole.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = lasting_port("127.0.0.1")

    async def serve(self) -> None:
        """Forward until cancelled."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        async with server:
            await server.serve_forever()

    async def cut(self, lasts_s: float) -> None:
        """Let nothing pass for a while."""
        self._whole.clear()
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self._whole.set()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_AT_ONCE):
                await self._whole.wait()
                sink.write(data)
                await sink.drain()
        await self._whole.wait()
        sink.close()
