"""Strike the leading Weaver of a live run again and again, while a client sends requests."""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator

import nats
from nats.errors import Error as NatsError

from experiments.chaos.live_play import LivePlay
from experiments.chaos.person import Requester
from experiments.chaos.processes import Place, Slot, start_lighthouse, strike
from experiments.failover.link import Link
from experiments.failover.weavers import StandbyWeaver, start_relay, start_server, url_of
from torchloom_core.cli.options import Connection
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.wire import subjects

GROUPS = ("g0", "g1", "g2")
START_S = 120.0
READY_S = 40.0
ASK_S = 0.25
LOOK_S = 0.02
TAKEOVER_LIMIT_S = 30.0
KINDS = ("kill", "freeze", "cut")
FENCED = "shared"
FENCED_SHARE = 0.4
"""Share of strikes that wait for a change of all ranks at one step, and come while it is made."""
FENCED_S = 0.3
FENCED_WAIT_S = 20.0
DURING_SHARE = 0.2
"""Share of strikes that are followed by one of the Weaver that takes over."""

TRAINS_AGAIN_S = 10.0
TRIES = 12
PAUSE_S = 0.3
SETTLE_S = 60.0


class Failover(LivePlay):
    """One live run, its Weavers, and the strikes of whichever leads."""

    def __init__(
        self,
        place: Place,
        seed: int,
        strikes: int,
        weavers: int,
        *,
        hosts: bool = False,
        twice: bool = False,
    ) -> None:
        super().__init__(place, seed)
        self._twice = twice
        self._seed = seed
        self._strikes = strikes
        self._hosts = hosts
        self._ports = [lasting_port("127.0.0.1") if hosts else 0 for _ in range(weavers)]
        self._rng = random.Random(seed)
        self._weavers: list[StandbyWeaver] = []
        self._slots: list[Slot] = []
        self._client = None
        self._server_port = 0
        self._fenced = asyncio.Event()
        self.done = 0
        self.requested = 0
        self.longest_s = 0.0

    async def run(self, show: Callable[[], None]) -> None:
        """Play from the first start to the last end."""
        server, self._server_port = start_server(self._place)
        if self._hosts:
            lighthouse, where = start_relay(self._place, self._ports)
        else:
            lighthouse, where = start_lighthouse(self._place)
        self._go(self._show(show))
        try:
            await self._start(where)
            self._place.timeline.add("begun")
            self.doing = "striking"
            requesting = self._go(self._request_all())
            while self.done < self._strikes:
                await self._strike()
            self.doing = "settling"
            await requesting
            await asyncio.gather(*self._frozen.values())
            await self._settle()
            await self._end()
        finally:
            await self._cancel_all()
            for process in (lighthouse, server):
                process.kill()
                process.wait()
            for line in self._place.left_over():
                strike(int(line.split()[1].rstrip(":")), signal.SIGKILL)

    async def _start(self, lighthouse: str) -> None:
        for number, port in enumerate(self._ports, 1):
            rng = random.Random(f"{self._seed} weaver {number}")
            link = Link(self._server_port)
            self._go(link.serve())
            self._weavers.append(StandbyWeaver(self._place, number, link, rng, port))
            self._go(self._weavers[-1].keep_up())
        self._client = await nats.connect(url_of(self._server_port), max_reconnect_attempts=-1)
        await self._until(lambda: self._has_join_file(), START_S, "a leader's join.json")
        rng = random.Random(f"{self._seed} trainers")
        for group in GROUPS:
            slot = Slot(self._place, group, lighthouse, rng, lambda: False)
            self._slots.append(slot)
            self._go(slot.keep_up())
        await self._until(lambda: all(slot.steps for slot in self._slots), START_S, "steps of all")

    def _has_join_file(self) -> bool:
        for weaver in self._weavers:
            weaver.give_join_file(self._server_port)
        return (self._place.state / "join.json").exists()

    # --- strikes ---

    async def _strike(self) -> None:
        leader, epoch = await self._leader(standbys=2)
        if self._rng.random() < FENCED_SHARE:
            self._fenced.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fenced.wait(), FENCED_WAIT_S)
            await asyncio.sleep(self._rng.uniform(0.0, FENCED_S))
        else:
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
        again = self._twice or self._rng.random() < DURING_SHARE
        marks = {one.number: one.log.count("taking over") for one in self._weavers}
        struck_s = self._hit(leader)
        if again and (second := await self._taking_over(marks, leader)) is not None:
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))
            struck_s = self._hit(second)
        while True:
            status = await self._status()
            if status is not None and status["epoch"] > epoch:
                leads = next((w for w in self._weavers if w.pid == _pid(status)), None)
                if leads is not None and not leads.frozen and not leads.struck:
                    break
            if time.monotonic() - struck_s > TAKEOVER_LIMIT_S:
                break
            await asyncio.sleep(LOOK_S)
        took_s = time.monotonic() - struck_s
        self.longest_s = max(self.longest_s, took_s)
        if self._hosts:  # the lighthouse follows, then training
            await asyncio.sleep(TRAINS_AGAIN_S)
            await self._until(lambda: all(slot.steps for slot in self._slots), START_S, "steps")
        self._place.timeline.add("taken_over", seconds=took_s, again=again)

    def _hit(self, weaver: StandbyWeaver) -> float:
        kind = "host" if self._hosts else self._rng.choice(KINDS)
        self._place.timeline.add("strike", target="weaver", kind=kind, number=weaver.number)
        struck_s = time.monotonic()
        if kind == "host":
            weaver.kill_host()
        elif kind == "kill":
            weaver.kill()
        else:
            harm = weaver.freeze if kind == "freeze" else weaver.cut
            self._frozen[weaver.pid] = self._go(harm(self._rng.uniform(2.5, 7.0)))
        self.done += 1
        self.struck[kind] += 1
        return struck_s

    async def _taking_over(
        self, marks: dict[int, int], leader: StandbyWeaver
    ) -> StandbyWeaver | None:
        """Return the Weaver that says that it takes over, as soon as it does."""
        end_s = time.monotonic() + TAKEOVER_LIMIT_S
        while time.monotonic() < end_s:
            for one in self._weavers:
                news = one.log.count("taking over") > marks[one.number]
                if one is not leader and news and one.pid:
                    return one
            await asyncio.sleep(LOOK_S)
        return None

    async def _leader(self, standbys: int) -> tuple[StandbyWeaver, int]:
        """Return the leader once so many stand by, and its epoch."""
        end_s = time.monotonic() + READY_S
        while True:
            status = await self._status()
            if status is not None:
                leads = [w for w in self._weavers if w.pid and w.pid == _pid(status)]
                late = time.monotonic() > end_s
                enough = len(status["standbys"]) >= standbys or late
                if leads and not leads[0].frozen and enough:
                    return leads[0], status["epoch"]
            await asyncio.sleep(LOOK_S)

    async def _status(self) -> dict | None:
        try:
            subject = subjects.control("chaos", "judge", "status")
            answer = await self._client.request(subject, b"", timeout=ASK_S)
            return json.loads(answer.data)
        except (NatsError, TimeoutError):
            return None

    # --- requests ---

    async def _request_all(self) -> None:
        """Send one request after the other, each until it is answered, under one id."""
        connection = Connection(config=self._weavers[0].config, url=url_of(self._server_port))
        requester = Requester(connection, self._requests, "person")
        for number, (verb, body) in enumerate(self._wanted()):
            if self.doing != "striking":
                return
            if body.get("knob") == FENCED:
                self._fenced.set()
            for _ in range(TRIES):
                answer = await requester.request(verb, {**body, "id": f"request-{number}"})
                if answer is not None:
                    break
                await asyncio.sleep(PAUSE_S)
            self.requested += 1
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))

    def _wanted(self) -> Iterator[tuple[str, dict]]:
        for value in itertools.count(1):
            group = GROUPS[value % len(GROUPS)]
            match value % 4:
                case 0:
                    yield "propose", {"action": {"kind": "checkpoint"}}
                case 1:
                    one = {"worker": f"{group}-0"}
                    yield "knob.set", {"knob": "counter", "value": value, "sure": True, **one}
                case 2:
                    yield "knob.set", {"knob": FENCED, "value": value, "sure": True}
                case _:
                    yield "knob.set", {"knob": "counter", "value": value, "sure": True}

    # --- the end ---

    async def _settle(self) -> None:
        """Wait until no command is open."""
        end_s, at_rest = time.monotonic() + SETTLE_S, False
        while not at_rest and time.monotonic() < end_s:
            status = await self._status()
            at_rest = status is not None and not status["flights"] and not status["waiting"]
            await asyncio.sleep(PAUSE_S)
        self._place.timeline.add("settled", at_rest=at_rest)

    async def _end(self) -> None:
        self._place.is_over = True
        self._place.timeline.add("ending")
        for slot in self._slots:
            slot.struck = True
            if slot.process is not None:
                slot.process.terminate()
        await asyncio.sleep(3.0)
        for weaver in self._weavers:
            await asyncio.to_thread(weaver.stop)
        await self._client.close()


def _pid(status: dict) -> int:
    return int(status["leader"].split()[1])
