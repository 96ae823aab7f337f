"""What the benchmarks run in: a broker of their own, a Weaver's bus, and processes."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fleet import RUN

from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.inbound import Receive
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.wire.codec import encode
from torchloom_core.wire.messages import JoinFile, JoinReply, JoinRequest, Telemetry

HERE = Path(__file__).parent
PATIENCE_S = 120.0


@asynccontextmanager
async def running_broker() -> AsyncIterator[tuple[EmbeddedBroker, Path]]:
    """Yield an embedded broker and its state folder; both go afterwards."""
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        broker = EmbeddedBroker(Path(folder), RUN)
        await broker.start()
        try:
            yield broker, Path(folder)
        finally:
            await broker.stop()


@asynccontextmanager
async def open_bus(broker: EmbeddedBroker, receive: Receive) -> AsyncIterator[NatsBus]:
    """Yield a bus as the Weaver opens it, which lets every worker join."""
    bus = await NatsBus.connect(broker.url, RUN, creds=broker.credentials.weaver_creds)
    enrolment = Enrolment(RUN, broker.credentials.worker_jwt, Grants())

    async def admit(request: JoinRequest) -> JoinReply:
        return enrolment.grant(request)

    try:
        await bus.open(receive, lambda subject, reason: None)
        await bus.serve_join(admit)
        yield bus
    finally:
        await bus.close()


def write_join_file(broker: EmbeddedBroker, folder: Path) -> Path:
    """Write the file with which a trainer finds ``broker``, and return its path."""
    path = folder / "join.json"
    path.write_bytes(
        encode(JoinFile(url=broker.url, run=RUN, creds=broker.credentials.join_creds_text()))
    )
    return path


class Arrivals:
    """The workers whose telemetry has arrived, and a way to wait for more."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.workers: set[str] = set()

    def receive(self, message: object, ts_ns: int, data: bytes) -> bool:
        """Take what the bus hands on."""
        del ts_ns, data
        if isinstance(message, Telemetry):
            self.workers.add(message.worker)
            self.notify()
        return True

    def notify(self) -> None:
        """Notify the waiters."""
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition()`` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Actor:
    """A process of a benchmark, which reports in lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name

    async def hear(self) -> dict[str, Any]:
        """Return the next line."""
        if self._process.stdout is None:
            raise RuntimeError(f"{self._name} has no output")
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        if not line:
            raise RuntimeError(f"{self._name} ended, status {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self) -> None:
        """Let the process begin: it waits for a line."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")

    async def ended(self) -> None:
        """Wait for the process to end well."""
        status = await asyncio.wait_for(self._process.wait(), PATIENCE_S)
        if status:
            raise RuntimeError(f"{self._name} ended with status {status}")


@asynccontextmanager
async def actor(script: str, *arguments: object, **environment: str) -> AsyncIterator[Actor]:
    """Run a script of this folder until the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / script),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        yield Actor(process, script)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def report(**fields: Any) -> None:
    """Print fields as a line of JSON for the parent process."""
    print(json.dumps(fields), flush=True)
