"""Mutated messages to a real Weaver through each party's own credentials."""

import asyncio
import time
from pathlib import Path

import msgspec
import nats.errors
from found import Found, Show
from mutation import Mutator
from parties import Parties
from scene import GROUPS, PATIENCE_S, Scene

_FLUSH_EVERY = 200
_ASK_EVERY = 500
_FRESH_S = 10.0


async def fuzz_weaver(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Send ``count`` mutated messages of all parties, and check what has survived.

    At the end the leader is killed: the standby has to take over what the messages have left.
    """
    found = Found("weaver")
    mutator = Mutator(seed)
    scene = Scene(folder)
    try:
        await scene.ready()
        parties = Parties(scene)
        await parties.connect()
        await _trains(parties, found)
        await _send(scene, parties, mutator, count, found, show)
        await _trains(parties, found)
        before = await parties.status()
        found.numbers |= {"malformed": before.malformed, "ticks": before.ticks}
        found.numbers |= {"acks_of_real_commands": parties.acked}
        found.numbers |= {"messages_to_people": scene.receiver.count}
        await _taken_over(scene, parties, before.epoch, found)
        await parties.close()
    except (TimeoutError, RuntimeError, nats.errors.Error) as error:
        found.hang(f"{type(error).__name__}: {error}")
    finally:
        await scene.end(found)
    found.numbers["log_kB"] = round(scene.leader.log.stat().st_size / 1e3)
    return found


async def _send(
    scene: Scene, parties: Parties, mutator: Mutator, count: int, found: Found, show: Show
) -> None:
    slowest_s = 0.0
    for number in range(count):
        await parties.send(mutator, number)
        found.sent += 1
        if number % _FLUSH_EVERY == 0:
            await parties.flush()
            show(found.sent)
        if number % _ASK_EVERY == 0 or number == count - 1:
            for weaver in (scene.leader, scene.standby):
                if weaver is not None and weaver.process.poll() is not None:
                    found.death(f"the {weaver.name}, after {number} messages")
                    return
            slowest_s = max(slowest_s, await _asked(parties, found, number))
            await parties.scrape(found, number)
    found.numbers["slowest_status_s"] = round(slowest_s, 3)


async def _taken_over(scene: Scene, parties: Parties, epoch: int, found: Found) -> None:
    """Kill the leader; a standby that does not lead, with both trainers, is a finding."""
    found.look_for_tracebacks(scene.leader.log.read_text(errors="replace"))
    scene.leader.kill()
    began, status = time.monotonic(), None
    while status is None or status.epoch == epoch:
        if time.monotonic() > began + PATIENCE_S:
            found.hang("the standby does not take over")
            return
        try:
            status = await parties.status()
        except nats.errors.Error:
            await asyncio.sleep(0.1)
    found.numbers["taken_over_s"] = round(time.monotonic() - began, 1)
    await _trains(parties, found)


async def _asked(parties: Parties, found: Found, number: int) -> float:
    began = time.monotonic()
    try:
        await parties.status()
    except (TimeoutError, nats.errors.Error) as error:
        found.hang(f"no status after {number} messages: {type(error).__name__} {error}")
    except msgspec.DecodeError as error:
        found.traceback(f"a status that is none after {number} messages: {error}")
    return time.monotonic() - began


async def _trains(parties: Parties, found: Found) -> None:
    """Wait for recent heartbeats of both sidecars."""
    deadline = time.monotonic() + PATIENCE_S
    wanted = {f"{group}-0" for group in GROUPS}
    alive = set[str]()
    while time.monotonic() < deadline:
        status = await parties.status()
        alive = {
            row.worker
            for row in status.workers
            if row.heartbeat_age_s is not None and row.heartbeat_age_s < _FRESH_S
        }
        if wanted <= alive:
            return
        await asyncio.sleep(0.2)
    found.hang(f"need heartbeats of {sorted(wanted)}, were of {sorted(alive)}")
