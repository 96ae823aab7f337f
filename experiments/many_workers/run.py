"""Set a knob on thousands of simulated workers with a real Weaver, and kill it half-way.

``python experiments/many_workers/run.py --workers 10000 --kill``; the workers are one process that
answers for all of them, so that what is measured is the Weaver and its broker.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console

from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire import subjects
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import decode_command, encode, encode_telemetry
from torchloom_core.wire.commands import FINAL_STATUSES, Ack, AckStatus, Command
from torchloom_core.wire.decisions import CommandStatus, Outcome
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import Hello, KnobSpec, Telemetry
from torchloom_core.wire.operations import SetKnob

RUN = "run"
INCARNATION = 1
PERSON = "operator"
LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
STAGES: tuple[AckStatus, ...] = ("delivered", "accepted", "applied")
DEADLINE_S = 300.0
BEAT_S = 2.0
AT_ONCE = 500

_T = TypeVar("_T", bound=msgspec.Struct)

console = Console()


class Weaver:
    """A real Weaver in a folder of its own, started again where it was killed."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.state = folder / "state"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "torchloom.toml").write_text(f"[weaver]\nstate_dir = 'state'\n{config}")

    async def start(self, *options: str) -> float:
        """Start it and return how long it took to be ready, in seconds."""
        out, began = self._folder / "out", time.monotonic()
        with out.open("w") as stdout, (self._folder / "err").open("a") as stderr:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
                [sys.executable, "-m", "torchloom_core.cli", "weaver", *options],
                cwd=self._folder,
                stdout=stdout,
                stderr=stderr,
            )
        while "is ready" not in out.read_text():
            if self._process.poll() is not None:
                sys.exit((self._folder / "err").read_text()[-2000:])
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid if self._process is not None else 0

    @property
    def broker(self) -> dict[str, object]:
        """What it wrote of its server: ``pid``, ``port``, ``url``, ``monitor_url``."""
        found: dict[str, object] = json.loads((self.state / "broker/broker.json").read_text())
        return found

    def freeze(self) -> None:
        """Stop it where it is, until it is killed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill it with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end_broker(self) -> None:
        """End its server, which a killed Weaver leaves behind."""
        with suppress(ProcessLookupError):
            os.kill(int(str(self.broker["pid"])), signal.SIGTERM)

    def end(self) -> int:
        """End it as a person does, and return its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    async def connect(self, name: str) -> Client:
        """Connect with the credentials of this name."""
        url = str(self.broker["url"])
        creds = self.state / "broker" / "keys" / f"{name}.creds"

        async def ignore(error: Exception) -> None:
            del error

        return await nats.connect(
            url, user_credentials=str(creds), error_cb=ignore, max_reconnect_attempts=-1
        )


class Workers:
    """Acts for every worker: its hello, periodic heartbeats, and each command once."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._value: dict[str, KnobValue] = {f"g{n // 8}-{n % 8}": 0.1 for n in range(count)}
        self._beats = 0
        self.done: Counter[str] = Counter()

    async def start(self) -> None:
        """Subscribe to the roll call and the commands, send the hellos, and go on with beats."""
        await self._client.subscribe(subjects.roll_call(RUN), cb=self._on_roll)
        await self._client.subscribe(subjects.command(RUN), cb=self._on_command)
        await self.say_hello()
        self.beating = asyncio.create_task(self.beat())

    async def say_hello(self) -> None:
        """Send the hello of each worker."""
        for number, (worker, value) in enumerate(self._value.items()):
            group, _, rank = worker.partition("-")
            hello = Hello(
                run=RUN,
                worker=worker,
                incarnation=INCARNATION,
                group=group,
                rank=int(rank),
                node=f"node-{group}",
                knobs=(LR,),
                values={"lr": value},
            )
            await self._client.publish(subjects.event(RUN, worker, INCARNATION), encode(hello))
            await self._breathe(number)

    async def beat(self) -> None:
        """Send heartbeats of all, forever."""
        while True:
            began = time.monotonic()
            for number, worker in enumerate(self._value):
                batch = Telemetry(
                    run=RUN,
                    worker=worker,
                    incarnation=INCARNATION,
                    seq=self._beats,
                    state="training",
                    step=self._beats,
                    progress_age_s=0.0,
                )
                subject = subjects.telemetry(RUN, worker, INCARNATION)
                await self._client.publish(subject, encode_telemetry(batch))
                await self._breathe(number)
            self._beats += 1
            await asyncio.sleep(max(0.0, BEAT_S - (time.monotonic() - began)))

    async def _on_roll(self, _: Msg) -> None:
        await self.say_hello()

    async def _on_command(self, message: Msg) -> None:
        command = decode_command(message.data)
        if isinstance(command.do, SetKnob):
            if command.id not in self.done:
                self._value[command.worker] = command.do.value
            self.done[command.id] += 1
            for status in STAGES:
                await self._ack(command, status)

    async def _ack(self, command: Command, status: AckStatus) -> None:
        ack = Ack(
            command=command.id,
            run=RUN,
            worker=command.worker,
            incarnation=INCARNATION,
            epoch=command.epoch,
            status=status,
        )
        await self._client.publish(subjects.ack(RUN, command.worker, INCARNATION), encode(ack))

    async def _breathe(self, number: int) -> None:
        if number % AT_ONCE == 0:
            await asyncio.sleep(0.01)


class Person:
    """Sends requests to the Weaver, and records the slowest answer of the kill switch."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.worst_s = 0.0

    async def ask(self, verb: str, body: object = None) -> dict[str, object]:
        """Send a request and return its answer."""
        data = b"" if body is None else json.dumps(body).encode()
        reply = await self._client.request(subjects.control(RUN, PERSON, verb), data, timeout=30)
        answer: dict[str, object] = json.loads(reply.data)
        return answer

    async def heartbeat_ages_s(self) -> list[float]:
        """Return the ages of the last heartbeats of some workers."""
        rows: list[dict[str, float]] = (await self.ask("status"))["workers"]  # type: ignore[assignment]
        return [row["heartbeat_age_s"] or 0.0 for row in rows]

    async def workers(self) -> int:
        """Return how many workers train."""
        training, after = 0, ""
        while True:
            page = await self.ask("status", {"after": after})
            rows: list[dict[str, str]] = page["workers"]  # type: ignore[assignment]
            training += sum(row["state"] == "training" for row in rows)
            if not page["more"]:
                return training
            after = rows[-1]["worker"]

    async def all_train(self, count: int, every_s: float = 0.1) -> None:
        """Wait until so many workers train."""
        began = time.monotonic()
        while await self.workers() < count:
            give_up(began)
            await asyncio.sleep(every_s)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def press(self) -> None:
        """Release the kill switch, which is not on, and take the time."""
        began = time.monotonic()
        with suppress(nats.errors.Error):
            await self.ask("actions.resume")
            self.worst_s = max(self.worst_s, time.monotonic() - began)


async def play(folder: Path, count: int, *, kill: bool) -> None:
    """Play one run and print the results."""
    weaver = Weaver(folder)
    console.print(f"the Weaver is ready after {await weaver.start():.1f} s")
    connection, person = await weaver.connect("weaver"), Person(await weaver.connect(PERSON))
    workers = Workers(connection, count)
    await workers.start()
    with console.status("waiting until all train"):
        began = time.monotonic()
        await person.all_train(count, 0.5)
        console.print(f"{count:,} workers train after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    await person.ask("knob.set", {"knob": "lr", "value": 0.2})
    with console.status("setting the knob"):
        while len(workers.done) < count:
            if kill and len(workers.done) > count // 4:
                kill = False
                weaver.kill()
                console.print(f"the Weaver was killed when {len(workers.done):,} had the command")
                console.print(f"its successor is ready after {await weaver.start():.1f} s")
                person.worst_s = 0.0
            await person.press()
            give_up(began)
            await asyncio.sleep(0.1)
        console.print(f"all have the command after {time.monotonic() - began:.1f} s")
        await until(lambda: bool(recorded(weaver, Outcome)), 0.5)
    workers.beating.cancel()
    console.print(f"the kill switch answered within {person.worst_s:.2f} s, all along")
    console.print(f"the Weaver ended with status {weaver.end()}")
    ends = Counter(
        record.command
        for record in recorded(weaver, CommandStatus)
        if record.status in FINAL_STATUSES
    )
    again = sum(number > 1 for number in ends.values())
    console.print(f"commands with one end on record: {len(ends) - again:,}, with more: {again}")
    for outcome in recorded(weaver, Outcome):
        console.print(f"{outcome.result}: {outcome.detail}")


def recorded(weaver: Weaver, cls: type[_T]) -> list[_T]:
    kind = cls.__struct_config__.tag
    return [
        from_json(line.body, cls)
        for record in read_epochs(run_folder(weaver.state, RUN))
        for line in record.lines()
        if line.kind == kind
    ]


async def until(condition: Callable[[], bool], every_s: float = 0.1) -> None:
    """Wait until something holds."""
    began = time.monotonic()
    while not condition():
        give_up(began)
        await asyncio.sleep(every_s)


def give_up(began: float) -> None:
    """End the whole with a line if it takes too long."""
    if time.monotonic() - began > DEADLINE_S:
        sys.exit(f"gave up after {DEADLINE_S:g} s")


def main() -> None:
    """Play it in a folder that goes away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--kill", action="store_true", help="kill the Weaver half-way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asyncio.run(play(Path(folder), options.workers, kill=options.kill))


if __name__ == "__main__":
    main()
