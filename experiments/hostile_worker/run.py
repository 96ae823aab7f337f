"""How much a hostile worker at full rate delays commands to another worker.

``python -m experiments.hostile_worker.run``: a real Weaver, a real trainer whose knob a person sets
again and again, and a process that enrols and writes one kind of message as fast as the server
takes it. Turns of ``--seconds`` without and with it follow each other; the Weaver cuts it as it
does by default. Changes that fall into the flood are in the turn's figures.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from nats.aio.client import Client
from rich.console import Console
from rich.table import Table

from experiments.hostile_worker.flood import KINDS
from experiments.many_workers.run import PERSON, RUN, Weaver
from torchloom_core.wire import subjects

_TRAINER = Path(__file__).parents[1] / "bench" / "command_trainer.py"
_DEADLINE_S = 60.0
_PAUSE_S = 0.05
"""Between two changes: more than people, or their scripts, send."""

console = Console(soft_wrap=True)


class Person:
    """Sets the trainer's knob, and measures until it is done."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ended = asyncio.Event()
        self._value = 0.0

    async def listen(self) -> None:
        """Follow the outcomes."""

        async def end(message: object) -> None:
            del message
            self._ended.set()

        await self._client.subscribe(subjects.out(RUN, "outcome"), cb=end)
        await self._client.flush()

    async def ask(self, verb: str, body: object) -> dict[str, object]:
        """Return the Weaver's answer."""
        subject = subjects.control(RUN, PERSON, verb)
        reply = await self._client.request(subject, json.dumps(body).encode(), timeout=_DEADLINE_S)
        answer: dict[str, object] = json.loads(reply.data)
        return answer

    async def trains(self, worker: str) -> None:
        """Wait until the worker trains."""
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                rows = (await self.ask("status", {}))["workers"]
                assert isinstance(rows, list)
                if any((row["worker"], row["state"]) == (worker, "training") for row in rows):
                    return
                await asyncio.sleep(0.2)

    async def set_knob(self) -> float:
        """Return how long a change took, from the request to its outcome, in milliseconds."""
        self._ended.clear()
        self._value = 1.0 + (self._value + 0.01) % 1.0
        began_s = time.perf_counter()
        answer = await self.ask("knob.set", {"knob": "x", "value": self._value, "worker": "g0-0"})
        if not answer["ok"]:
            sys.exit(f"knob.set: {answer['text']}")
        await asyncio.wait_for(self._ended.wait(), _DEADLINE_S)
        return 1000 * (time.perf_counter() - began_s)


@asynccontextmanager
async def scene(config: str) -> AsyncIterator[tuple[Weaver, Person]]:
    """Yield a Weaver with a worker that trains, and a person."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        weaver = Weaver(Path(folder), config)
        await weaver.start()
        environment = {"TORCHLOOM_JOIN": str(weaver.state / "join.json"), "TORCHLOOM_GROUP": "g0"}
        trainer = _start([sys.executable, str(_TRAINER)], environment)
        client = await weaver.connect(PERSON)
        person = Person(client)
        try:
            await person.listen()
            await person.trains("g0-0")
            yield weaver, person
        finally:
            trainer.kill()
            trainer.wait()
            await client.close()
            weaver.end()


def _start(command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@asynccontextmanager
async def flooded(weaver: Weaver, kind: str) -> AsyncIterator[subprocess.Popen[str]]:
    """Run the hostile worker."""
    join = str(weaver.state / "join.json")
    process = _start([sys.executable, "-m", "experiments.hostile_worker.flood", join, kind])
    try:
        assert process.stdout is not None
        if "began" not in await asyncio.to_thread(process.stdout.readline):
            sys.exit(f"the hostile worker ({kind}) got no connection")
        yield process
    finally:
        process.kill()
        process.wait()


class Turn(NamedTuple):
    """The changes of one turn, in milliseconds, and for how long the flood went on."""

    took_ms: list[float]
    flood_s: float = 0.0


async def changes(person: Person, seconds: float) -> list[float]:
    """Set the knob for so long."""
    end_s, took_ms = time.monotonic() + seconds, []
    while time.monotonic() < end_s:
        took_ms.append(await person.set_knob())
        await asyncio.sleep(_PAUSE_S)
    return took_ms


async def flooded_turn(weaver: Weaver, person: Person, kind: str, seconds: float) -> Turn:
    """Set the knob from the first message of the flood on."""
    async with flooded(weaver, kind) as process:
        began_s = time.monotonic()

        def until_cut() -> float:
            process.wait()
            return time.monotonic() - began_s

        cut = asyncio.create_task(asyncio.to_thread(until_cut))
        took_ms = await changes(person, seconds)
        process.kill()
        return Turn(took_ms, await cut)


async def measure(kinds: list[str], turns: int, seconds: float) -> list[list[str]]:
    """Return a row for each kind."""
    rows = []
    async with scene("[arbiter]\ncooldown_s = 0.0\n") as (weaver, person):
        await changes(person, 3.0)
        for kind in kinds:
            quiet: list[float] = []
            loud: list[Turn] = []
            for _ in range(turns):
                quiet += await changes(person, seconds)
                loud.append(await flooded_turn(weaver, person, kind, seconds))
            all_ms = [ms for turn in loud for ms in turn.took_ms]
            without, with_it = median(quiet), median(all_ms)
            cut_s = median(turn.flood_s for turn in loud)
            row = [without, with_it, with_it / without, max(quiet), max(all_ms), cut_s]
            rows.append([kind, *(f"{figure:.2f}" for figure in row)])
            console.print(" ".join(rows[-1]))
    return rows


def main() -> None:
    """Measure all kinds, and end with status 1 if one more than doubles the latency."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--turns", type=int, default=3, help="without and with, each [3]")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn [20]")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.kinds, options.turns, options.seconds))
    heads = ("without, ms", "with, ms", "times", "worst without", "worst with", "flood, s")
    table = Table("flood of", *heads)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    sys.exit(0 if all(float(row[3]) <= 2 for row in rows) else 1)


if __name__ == "__main__":
    main()
