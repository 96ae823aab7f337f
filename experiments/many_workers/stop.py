"""Activate the kill switch just after a knob was set on thousands of simulated workers.

``python experiments/many_workers/stop.py --workers 1000 2000 3000``: for each size a real Weaver
with its own nats-server; the outcome on record, and the value that stays wanted, are compared with
what the workers did.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console

from experiments.many_workers.run import PERSON, Person, Weaver, Workers, recorded, until
from torchloom_core.wire.decisions import KnobDesired, Outcome

VALUE = 0.2

console = Console(soft_wrap=True)


class SlowWorkers(Workers):
    """Each reaches its next step boundary within ``within_s``, and only then obeys and answers."""

    def __init__(self, client: Client, count: int, within_s: float) -> None:
        super().__init__(client, count)
        self._within_s = within_s
        self._obeying: set[asyncio.Task[None]] = set()

    async def _on_command(self, message: Msg) -> None:
        task = asyncio.create_task(self._obey(message, random.uniform(0.0, self._within_s)))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)

    async def _obey(self, message: Msg, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await super()._on_command(message)


@dataclass(frozen=True)
class Stopped:
    """What came of a knob that was stopped.

    ``applied`` of ``workers`` did it, ``wanted`` is whether its value stays wanted.
    """

    workers: int
    answer_s: float
    outcome_s: float
    result: str
    detail: str
    applied: int
    wanted: bool

    @property
    def is_true(self) -> bool:
        """Whether outcome and wanted value agree with what the workers did."""
        true = {0: "undone", self.workers: "done"}.get(self.applied, "partial")
        return self.result == true and self.wanted == bool(self.applied)


async def play(folder: Path, count: int, *, after_s: float, within_s: float) -> Stopped:
    """Set the knob, stop actions ``after_s`` later, and wait for the outcome."""
    weaver = Weaver(folder)
    await weaver.start()
    connection, person = await weaver.connect("weaver"), Person(await weaver.connect(PERSON))
    workers = SlowWorkers(connection, count, within_s)
    await workers.start()
    await person.all_train(count, 0.2)
    await person.ask("knob.set", {"knob": "lr", "value": VALUE})
    await asyncio.sleep(after_s)
    stopped = time.monotonic()
    await person.ask("actions.stop")
    answer_s = time.monotonic() - stopped
    await until(lambda: bool(recorded(weaver, Outcome)), 0.2)
    outcome_s = time.monotonic() - stopped
    await asyncio.sleep(within_s + 1.0)  # a later application would show the outcome to be wrong
    workers.beating.cancel()
    applied = len(workers.done)
    await connection.close()
    await person.close()
    weaver.end()
    wanted = recorded(weaver, KnobDesired)[-1].value == VALUE
    (outcome,) = recorded(weaver, Outcome)
    return Stopped(count, answer_s, outcome_s, outcome.result, outcome.detail, applied, wanted)


def main() -> None:
    """Play all sizes, and end with status 1 if an outcome is not true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1000, 2000, 3000])
    parser.add_argument("--after", type=float, default=0.3, help="stop so long after it [0.3 s]")
    parser.add_argument("--within", type=float, default=5.0, help="slowest step boundary [5 s]")
    options = parser.parse_args()
    all_true = True
    for count in options.workers:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            played = play(Path(folder), count, after_s=options.after, within_s=options.within)
            came = asyncio.run(played)
        all_true &= came.is_true
        console.print(
            f"{count:,} workers: stop answered in {came.answer_s:.2f} s; {came.result} "
            f"({came.detail}) after {came.outcome_s:.1f} s; {came.applied:,} applied it; "
            f"{'wanted' if came.wanted else 'not wanted'}: {'true' if came.is_true else 'NOT TRUE'}"
        )
    sys.exit(0 if all_true else 1)


if __name__ == "__main__":
    main()
