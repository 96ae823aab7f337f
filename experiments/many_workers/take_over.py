"""Kill the Weaver of thousands of workers while a standby waits, and time the take-over.

``python experiments/many_workers/take_over.py --workers 3000``; the leader, its nats-server and
the standby are real, and each worker has its own connection.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from experiments.many_workers.herd import PREDICTORS, Herds, Measured, console
from experiments.many_workers.run import PERSON, RUN, Person, Weaver, give_up, until
from torchloom_core.wire import subjects

_ASK_S = 0.25
_LOOK_S = 0.02
_MOST_S = 3.0
_CONFIG = "".join(f"[predictors.{name}]\n" for name in PREDICTORS) + "[policies.silence]\n"
_BROKER = """[broker]
url = '{url}'
creds = '{creds}'
"""


async def play(folder: Path, options: argparse.Namespace) -> list[Measured]:
    """Play one run, print the results and return them."""
    results: list[Measured] = []

    def note(text: str, began_s: float, most: float | None = None) -> None:
        results.append(Measured(text, time.monotonic() - began_s, most))
        console.print(str(results[-1]))

    leader = Weaver(_made(folder / "leader"), _CONFIG)
    await leader.start()
    creds = leader.state / "broker" / "keys" / "weaver.creds"
    broker = _BROKER.format(url=leader.broker["url"], creds=creds)
    standby = Weaver(_made(folder / "standby"), broker + _CONFIG)
    client = await leader.connect(PERSON)
    person, herds = Person(client), Herds(options, leader.state / "join.json")
    try:
        herds.start()
        began_s = time.monotonic()
        await until(lambda: herds.get("up") >= options.workers)
        await _until_known(client, options.workers)
        note("all enrolled and known after, s", began_s)
        standing = asyncio.create_task(standby.start("--standby"))
        epoch = await _until_it_stands_by(client)
        await asyncio.sleep(options.settle)

        leader.kill()
        began_s = time.monotonic()
        await _until_led(client, epoch)
        note("the standby leads and answers after, s", began_s, _MOST_S)
        await standing
        await _until_known(client, options.workers)
        note("it knows all workers after, s", began_s)
        began_s = time.monotonic()
        answer = await person.ask("knob.set", {"knob": "lr", "value": 0.2})
        if not answer["ok"]:
            sys.exit(f"knob.set: {answer['text']}")
        await until(lambda: herds.get("applied") >= options.workers)
        note("a knob applied by all after, s", began_s, 10.0)
        while int(str((await person.ask("status", {"workers": False}))["flights_in_all"])):
            give_up(began_s)
            await asyncio.sleep(_LOOK_S)
        note("and reported after, s", began_s, 10.0)
        more = herds.get("applied") - options.workers
        results.append(Measured("commands carried out twice", more, 0))
        console.print(str(results[-1]))
    finally:
        herds.end()
        await person.close()
        standby.end()
        leader.end_broker()
    return results


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _status(client: Client) -> dict[str, object]:
    """Return a summary, empty if no Weaver answers."""
    subject = subjects.control(RUN, PERSON, "status")
    try:
        answer = await client.request(subject, b'{"summary": true}', timeout=_ASK_S)
    except (nats.errors.Error, TimeoutError):
        return {}
    found: dict[str, object] = json.loads(answer.data)
    return found


async def _until_known(client: Client, count: int) -> None:
    began_s = time.monotonic()
    while True:
        counts: dict[str, dict[str, int]] = (await _status(client)).get("counts", {})  # type: ignore[assignment]
        if sum(states.get("training", 0) for states in counts.values()) >= count:
            return
        give_up(began_s)
        await asyncio.sleep(_LOOK_S)


async def _until_it_stands_by(client: Client) -> int:
    """Return the leader's epoch once it knows the standby."""
    began_s = time.monotonic()
    while not (status := await _status(client)).get("standbys"):
        give_up(began_s)
        await asyncio.sleep(_LOOK_S)
    return int(str(status["epoch"]))


async def _until_led(client: Client, epoch: int) -> None:
    began_s = time.monotonic()
    while int(str((await _status(client)).get("epoch", 0))) <= epoch:
        give_up(began_s)
        await asyncio.sleep(_LOOK_S)


def main() -> None:
    """Play one run; the exit status is 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3000, help="how many [3000]")
    parser.add_argument("--within", type=float, default=5.0, help="they come within so many s [5]")
    parser.add_argument("--metrics", type=int, default=30, help="metrics a worker [30]")
    parser.add_argument("--processes", type=int, default=2, help="processes of workers [2]")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before the kill [5]")
    options = parser.parse_args()
    if options.workers <= 200:
        parser.error(f"--workers: need more than 200, was {options.workers}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        results = asyncio.run(play(Path(folder), options))
    exceeded = sum(not one.is_kept for one in results)
    console.print(f"{exceeded} limits exceeded; load {os.getloadavg()[0]:.1f}")
    sys.exit(bool(exceeded))


if __name__ == "__main__":
    main()
