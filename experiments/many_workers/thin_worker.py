"""Thousands of simulated workers in one process, each with its own credentials and connection.

Each does what a sidecar does: it enrols with the run's join credentials, connects with its own,
sends a hello, telemetry once a second, and carries out each command once.
"""

import asyncio
import multiprocessing
import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import nkeys

from experiments.many_workers.thin_client import Message, ThinClient, connect
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command, decode_json, encode, encode_telemetry
from torchloom_core.wire.commands import Ack, AckStatus
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import (
    Hello,
    JoinFile,
    JoinReply,
    JoinRequest,
    KnobSpec,
    RollCall,
    Telemetry,
)
from torchloom_core.wire.operations import SetKnob
from torchloom_threadlet.sidecar.backoff import Backoff

LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
COUNTS = (
    "up",  # connected with their own credentials now
    "enrolled",
    "joins",  # requests for credentials
    "waits",  # answers to them that they come too many at once
    "refused",  # connections that the server refused or that timed out
    "hellos",
    "applied",
    "again",  # copies of a command that was carried out before
    "sent",  # telemetry
)
STOP_BEATS, BEATS = 0, 1

_STAGES: tuple[AckStatus, ...] = ("delivered", "accepted", "applied")
_NAMED = ("step_time_s", "compute_s", "loss", "gpu_temp_celsius", "gpu_power_watts", "tokens_per_s")
_WITHIN_S = (2.0, 10.0)
_CONNECT_S = 10.0
_WAITS_S = (0.2, 5.0)
_RECONNECT_WAITS_S = (0.1, 5.0)
_SETTLES_S = 1.0
_SLICES = 50
FIRST = 70_000
"""The first sequence number and step: those above 65,535 and below 2**32 have one length."""

_GROUP = 8
_JWT = "-----BEGIN NATS USER JWT-----"
_SEED = "-----BEGIN USER NKEY SEED-----"


class Herd(NamedTuple):
    """Which workers a process acts for, and how."""

    first: int
    last: int
    within_s: float
    metrics: int
    source: str
    join: str


class Counters:
    """Numbers that a process of workers shares with the one that measures."""

    def __init__(self) -> None:
        self.values = multiprocessing.get_context("spawn").Array("q", len(COUNTS) + 1, lock=False)
        self.values[-1] = BEATS

    def add(self, name: str, more: int = 1) -> None:
        """Add to one number."""
        self.values[COUNTS.index(name)] += more

    def get(self, name: str) -> int:
        """Return one number."""
        return int(self.values[COUNTS.index(name)])

    def stop_beats(self) -> None:
        """Let the workers of the process send no more telemetry."""
        self.values[-1] = STOP_BEATS

    @property
    def beats(self) -> bool:
        """Whether the workers send telemetry."""
        return bool(self.values[-1] == BEATS)


class Sample:
    """One worker's telemetry, encoded once; only step, number and time are written anew."""

    def __init__(self, run: str, worker: str, incarnation: int, metrics: int) -> None:
        names = (*_NAMED, *(f"metric_{n:02d}" for n in range(len(_NAMED), metrics)))[:metrics]
        values = [random.uniform(0.9, 1.1) for _ in names]
        marks = FIRST, FIRST + 1
        stamp = struct.pack("<q", -7)
        batch = Telemetry(
            run=run,
            worker=worker,
            incarnation=incarnation,
            seq=marks[0],
            state="training",
            step=marks[1],
            progress_age_s=0.1,
            metrics=names,
            ts_ns=stamp if names else b"",
            values=struct.pack(f"<{len(values)}d", *values),
        )
        data = bytearray(encode_telemetry(batch))
        self._seq, self._step = (data.index(struct.pack(">BI", 0xCE, mark)) + 1 for mark in marks)
        self._stamp = data.index(stamp) if names else -1
        subject = subjects.telemetry(run, worker, incarnation)
        head = f"PUB {subject} {len(data)}\r\n".encode()
        self._at = len(head)
        self._bytes = bytearray(head + data + b"\r\n")
        self._number = 0

    def next(self) -> bytes:
        """Return the next message as it goes over the connection."""
        number, at = FIRST + self._number, self._at
        self._number += 1
        struct.pack_into(">I", self._bytes, at + self._seq, number)
        struct.pack_into(">I", self._bytes, at + self._step, number)
        if self._stamp >= 0:
            struct.pack_into("<q", self._bytes, at + self._stamp, time.time_ns())
        return bytes(self._bytes)


class ThinWorker:
    """One simulated worker."""

    def __init__(self, number: int, herd: Herd, join: JoinFile, counters: Counters) -> None:
        self._herd, self._join, self._counters = herd, join, counters
        self._run, self._port = join.run, int(join.url.rsplit(":", 1)[1])
        self.worker = f"g{number // _GROUP}-{number % _GROUP}"
        self._incarnation = time.time_ns() // 1_000_000
        self._seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
        self._jwt = ""
        self._values: dict[str, KnobValue] = {"lr": 0.1}
        self._done: set[str] = set()
        self._sample = Sample(self._run, self.worker, self._incarnation, herd.metrics)
        own = self._run, self.worker, self._incarnation
        self._inbox = subjects.inbox_prefix(*own)
        self._commands = subjects.command(*own)
        self._hello_due_s = self._settled_s = 0.0
        self.client: ThinClient | None = None

    async def live(self) -> None:
        """Enrol, and stay connected for ever."""
        await asyncio.sleep(random.uniform(0, self._herd.within_s))
        await self._enrol()
        backoff = Backoff(*_RECONNECT_WAITS_S)
        while True:
            try:
                client = await self._connect(self._jwt, self._seed, self._take, _CONNECT_S)
            except OSError:
                self._counters.add("refused")
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self.client = client
            if self._settled_s:
                self._settled_s = time.monotonic() + _SETTLES_S
            self._counters.add("up")
            self._begin(client)
            await client.over
            self._settled_s = float("inf")
            self._counters.add("up", -1)
            self.client = None
            await asyncio.sleep(backoff.next_s())

    async def _connect(
        self, jwt: str, seed: str, take: Callable[[Message], None], s: float
    ) -> ThinClient:
        return await connect(self._port, self._herd.source, jwt, seed, self.worker, take, s)

    async def _enrol(self) -> None:
        creds = self._join.creds
        jwt, seed = (creds.split(mark, 1)[1].split()[0] for mark in (_JWT, _SEED))
        request = JoinRequest(
            run=self._run,
            worker=self.worker,
            incarnation=self._incarnation,
            public_key=nkeys.from_seed(bytearray(self._seed.encode())).public_key.decode(),
            group=self.worker.partition("-")[0],
            node=f"node-{self.worker.partition('-')[0]}",
        )
        backoff, within_s = Backoff(*_WAITS_S), _WITHIN_S[0]
        asking: ThinClient | None = None
        answers: asyncio.Queue[Message] = asyncio.Queue()
        inbox = f"{subjects.join_inbox(self._run)}.{self.worker}"
        while True:
            wait_s = backoff.next_s()
            self._counters.add("joins")
            try:
                if asking is None or not asking.is_up:
                    asking = await self._connect(jwt, seed, answers.put_nowait, _CONNECT_S)
                    asking.subscribe(1, inbox)
                asked = msgspec.structs.replace(request, within_s=within_s)
                asking.publish(subjects.join(self._run), encode(asked), inbox)
                message = await asyncio.wait_for(answers.get(), within_s)
            except OSError:
                within_s = min(1.5 * within_s, _WITHIN_S[1])
                if asking is None:
                    self._counters.add("refused")
            else:
                reply = JoinReply()
                if not message.status:
                    reply = decode_json(JoinReply, message.data, "join reply")
                if reply.jwt:
                    self._jwt = reply.jwt
                    break
                if reply.wait_s:
                    self._counters.add("waits")
                    wait_s = reply.wait_s
            await asyncio.sleep(wait_s)
        asking.close()
        self._counters.add("enrolled")

    def _begin(self, client: ThinClient) -> None:
        client.subscribe(1, subjects.roll_call(self._run))
        client.subscribe(2, f"{self._inbox}.>")
        client.subscribe(3, self._commands)
        self._hello()

    def _hello(self) -> None:
        if self.client is None:
            return
        group, _, rank = self.worker.partition("-")
        hello = Hello(
            run=self._run,
            worker=self.worker,
            incarnation=self._incarnation,
            group=group,
            rank=int(rank),
            node=f"node-{group}",
            knobs=(LR,),
            values=self._values,
            ts_ns=time.time_ns(),
        )
        self._counters.add("hellos")
        self.client.publish(
            subjects.event(self._run, self.worker, self._incarnation), encode(hello)
        )

    def _take(self, message: Message) -> None:
        if message.subject == subjects.roll_call(self._run):
            self._on_roll(message)
        elif message.subject == self._commands:
            self._on_command(message)

    def _on_roll(self, message: Message) -> None:
        call = decode_json(RollCall, message.data, "roll call")
        now_s = time.monotonic()
        if now_s < self._hello_due_s or (call.workers and self.worker not in call.workers):
            return
        self._hello_due_s = now_s + 5.0
        self._hello()

    def _on_command(self, message: Message) -> None:
        command = decode_command(message.data)
        if command.id in self._done:
            self._counters.add("again")
        elif isinstance(command.do, SetKnob):
            self._values = {command.do.knob: command.do.value}
            self._counters.add("applied")
        self._done.add(command.id)
        client = self.client
        if client is None:
            return
        for status in _STAGES:
            ack = Ack(
                command=command.id,
                run=self._run,
                worker=self.worker,
                incarnation=self._incarnation,
                epoch=command.epoch,
                status=status,
            )
            client.publish(
                subjects.ack(self._run, self.worker, self._incarnation),
                encode(ack),
                f"{self._inbox}.stored",
                f"{ack.command}:{ack.epoch}:{status}:{self.worker}",
            )

    def beat(self) -> None:
        """Send telemetry, if connected.

        After a loss of the connection a sidecar waits a second, and sends what it has kept at once.
        """
        settled = self._settled_s <= time.monotonic()
        if settled and self.client is not None and self.client.is_up:
            self._counters.add("sent")
            self.client.write(self._sample.next())


def act(herd: Herd, counters: Counters) -> None:
    """Act for the workers of a herd until the process is ended."""
    join = msgspec.json.decode(Path(herd.join).read_bytes(), type=JoinFile)
    asyncio.run(_act(herd, join, counters))


async def _act(herd: Herd, join: JoinFile, counters: Counters) -> None:
    workers = [ThinWorker(n, herd, join, counters) for n in range(herd.first, herd.last)]
    tasks = [asyncio.create_task(worker.live()) for worker in workers]
    beating = asyncio.create_task(_beat(workers, counters))
    done, _ = await asyncio.wait([*tasks, beating], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _beat(workers: Sequence[ThinWorker], counters: Counters) -> None:
    """Let every worker send once a second, evenly spread over it."""
    due = time.monotonic()
    for turn in range(10**9):
        if counters.beats:
            for worker in workers[turn % _SLICES :: _SLICES]:
                worker.beat()
        due = max(due + 1 / _SLICES, time.monotonic() - 1.0)  # no bursts of what is long missed
        await asyncio.sleep(max(0.0, due - time.monotonic()))
