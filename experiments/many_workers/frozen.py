"""Kill a frozen Weaver after workers have acknowledged a command, and let the workers end.

``python experiments/many_workers/frozen.py --rounds 20 --busy 3``: each round has a real Weaver
with its own nats-server. It is frozen once the workers have a command; some of them carry it out
and acknowledge it; the Weaver is killed; all workers end; a successor is started. Its record must
match what the workers did, although their exits arrive as early as their acks.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console

from experiments.many_workers.run import (
    INCARNATION,
    PERSON,
    RUN,
    Person,
    Weaver,
    Workers,
    recorded,
    until,
)
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command, encode
from torchloom_core.wire.commands import FINAL_STATUSES
from torchloom_core.wire.decisions import CommandStatus, Outcome
from torchloom_core.wire.messages import Exit

console = Console(soft_wrap=True)


class WaitingWorkers(Workers):
    """Keep their commands until they are let go; then some obey, and all end."""

    def __init__(self, client: Client, count: int) -> None:
        super().__init__(client, count)
        self.waiting: list[Msg] = []
        self.has_ended = False

    async def _on_command(self, message: Msg) -> None:
        if not self.has_ended:  # a successor sends its commands again
            self.waiting.append(message)

    async def _on_roll(self, message: Msg) -> None:
        if not self.has_ended:
            await super()._on_roll(message)

    async def apply(self, messages: list[Msg]) -> None:
        """Do these commands and acknowledge them."""
        for message in messages:
            await super()._on_command(message)
        await self._client.flush()

    async def end(self) -> None:
        """End all."""
        self.has_ended = True
        for message in self.waiting:
            worker = decode_command(message.data).worker
            last = Exit(run=RUN, worker=worker, incarnation=INCARNATION, status=-9, expected=False)
            await self._client.publish(subjects.event(RUN, worker, INCARNATION), encode(last))
        await self._client.flush()


@dataclass(frozen=True)
class Round:
    """What is on record of one round: how many commands ended otherwise than the workers did."""

    applied: int
    workers: int
    untrue: int
    result: str
    took_s: float

    @property
    def is_true(self) -> bool:
        """Whether all ends and the outcome agree with what the workers did."""
        true = {0: "undone", self.workers: "done"}.get(self.applied, "partial")
        return not self.untrue and self.result == true


async def play(folder: Path, count: int, applied: int) -> Round:
    """Play one round of ``count`` workers, of which ``applied`` do the command."""
    weaver = Weaver(folder)
    await weaver.start()
    connection, person = await weaver.connect("weaver"), Person(await weaver.connect(PERSON))
    workers = WaitingWorkers(connection, count)
    await workers.start()
    await person.all_train(count)
    await person.ask("knob.set", {"knob": "lr", "value": 0.2})
    await until(lambda: len(workers.waiting) >= count, 0.02)
    weaver.freeze()
    await workers.apply(random.sample(workers.waiting, applied))
    workers.beating.cancel()
    await asyncio.sleep(0.5)  # the server sends the acks on to the frozen Weaver
    weaver.kill()
    await workers.end()
    killed = time.monotonic()
    await weaver.start()
    await until(lambda: bool(recorded(weaver, Outcome)))
    took_s = time.monotonic() - killed
    ends = {e.command: e for e in recorded(weaver, CommandStatus) if e.status in FINAL_STATUSES}
    untrue = sum((end.status == "applied") != (name in workers.done) for name, end in ends.items())
    await connection.close()
    await person.close()
    weaver.end()
    result = recorded(weaver, Outcome)[0].result
    return Round(applied, count, untrue + (count - len(ends)), result, took_s)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many cores busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    """Play the rounds, and end with status 1 if anything on record is not true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="how many [20]")
    parser.add_argument("--workers", type=int, default=24, help="how many a round has [24]")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside it [0]")
    options = parser.parse_args()
    wrong = 0
    with busy_loops(options.busy):
        for number in range(1, options.rounds + 1):
            applied = random.randint(1, options.workers)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                came = asyncio.run(play(Path(folder), options.workers, applied))
            wrong += not came.is_true
            console.print(
                f"round {number}: {came.applied} of {came.workers} applied, {came.result} after "
                f"{came.took_s:.1f} s, {came.untrue} untrue ends"
            )
    console.print(f"{options.rounds - wrong} of {options.rounds} rounds are true to the workers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
