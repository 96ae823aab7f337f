"""A command from issued to applied, against a bare NATS request and its reply."""

import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from statistics import median

import nats
from figure import Figure, medians, percentile
from fleet import RUN
from nats.aio.client import Client
from scene import Arrivals, actor, open_bus, running_broker, write_join_file

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.transport import NatsBus
from torchloom_core.wire.codec import encode
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import SetKnob

_ECHO = "bench.echo"
_WARM_UP = 20
_STAGES = ("delivered", "accepted", "applied")


class WeaversEnd(Arrivals):
    """Hears the hello and the acks, and knows when each came."""

    def __init__(self) -> None:
        super().__init__()
        self.hello: Hello | None = None
        self.heard_ns: dict[tuple[str, str], int] = {}

    def receive(self, message: object, ts_ns: int, data: bytes) -> bool:
        """Take what the bus hands on."""
        del ts_ns, data
        if isinstance(message, Hello):
            self.hello = message
        elif isinstance(message, Ack):
            self.heard_ns[message.command, message.status] = time.perf_counter_ns()
        self.notify()
        return True

    async def applied(self, command_id: str) -> None:
        """Wait until the command was applied."""
        await self.until(lambda: (command_id, "applied") in self.heard_ns)


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Send command and request in turns, each when the one before has been answered."""
    commands = 10 if tiny else 300
    end = WeaversEnd()
    async with AsyncExitStack() as stack:
        broker, folder = await stack.enter_async_context(running_broker())
        bus = await stack.enter_async_context(open_bus(broker, end.receive))
        creds = str(broker.credentials.weaver_creds)
        echo = await stack.enter_async_context(actor("echo.py", broker.url, creds, _ECHO))
        join = write_join_file(broker, folder)
        trainer = actor("command_trainer.py", TORCHLOOM_JOIN=str(join))
        await stack.enter_async_context(trainer)
        client = await nats.connect(broker.url, user_credentials=creds)
        stack.push_async_callback(client.close)
        await echo.hear()
        await end.until(lambda: end.hello is not None and bool(end.hello.knobs))
        if end.hello is None:
            raise RuntimeError("the trainer sent no hello")
        numbers = iter(range(10**9))
        await _turns(_WARM_UP, numbers, bus, client, end)
        rows = [await _turns(commands, numbers, bus, client, end) for _ in range(repeats)]
    what = "command, issued to the applied ack / bare NATS request and reply, p50"
    ratios = [row["applied_p50_us"] / row["request_p50_us"] for row in rows]
    return [Figure("command", what, 5, "at most", ratios, medians(rows))]


async def _turns(
    count: int, numbers: Iterable[int], bus: NatsBus, client: Client, end: WeaversEnd
) -> dict[str, float]:
    request_us: list[float] = []
    sent_us: list[float] = []
    stage_us: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    for _, number in zip(range(count), numbers, strict=False):
        command = _command(f"c{number}", end)
        data = encode(command)
        started_ns = time.perf_counter_ns()
        await client.request(_ECHO, data)
        request_us.append((time.perf_counter_ns() - started_ns) / 1000)
        started_ns = time.perf_counter_ns()
        await bus.send([command])
        sent_us.append((time.perf_counter_ns() - started_ns) / 1000)
        await end.applied(command.id)
        for stage in _STAGES:
            # The acks of one worker come in order: before the last, the others have come.
            stage_us[stage].append((end.heard_ns[command.id, stage] - started_ns) / 1000)
    row = {"request_p50_us": median(request_us), "request_p99_us": percentile(request_us, 0.99)}
    row["sent_p50_us"] = median(sent_us)
    for stage, took_us in stage_us.items():
        row[f"{stage}_p50_us"] = median(took_us)
        row[f"{stage}_p99_us"] = percentile(took_us, 0.99)
    return row


def _command(command_id: str, end: WeaversEnd) -> Command:
    if end.hello is None:
        raise RuntimeError("need a hello before a command")
    now_ns = time.time_ns()
    return Command(
        id=command_id,
        run=RUN,
        worker=end.hello.worker,
        incarnation=end.hello.incarnation,
        epoch=1,
        issued_ns=now_ns,
        deadline_ns=now_ns + 60 * SECOND_NS,
        do=SetKnob(knob="x", value=float(now_ns % 1000)),
    )
