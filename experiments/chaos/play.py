"""Play a script on a live run: strikes and requests, then wait until it settles, and end it."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from experiments.chaos.hosts import Host, cluster, give_join_file, leads
from experiments.chaos.live_play import LivePlay
from experiments.chaos.person import Person
from experiments.chaos.processes import (
    DEADLINE_S,
    POLL_S,
    START_S,
    Place,
    Slot,
    start_lighthouse,
    strike,
)
from experiments.chaos.script import Script, Strike

GROUPS = ("g0", "g1", "g2", "g3")
TRAINING = 3
SETTLE_S = 90.0
SIDECAR_END_S = 45.0
STOP_S = 30.0
SEALED_S = 120.0
FINAL_VALUE = 999_999
PROBE_EVERY_S = 0.4
QUIET_S = 1.0
"""What training needs is struck only once all have stepped this long after the last such strike."""
LEADER = 0.5
"""Share of the strikes of a Weaver, a server or a host that hit the leader's."""
STRIKING, SETTLING, ENDING = "striking", "settling", "ending"


class Victim(NamedTuple):
    """The processes to strike, and whose they are."""

    pids: tuple[int, ...] = ()
    host: Host | None = None
    slot: Slot | None = None


NOBODY = Victim()


class Play(LivePlay):
    """One live run and what is done to it."""

    def __init__(self, script: Script, seed: int, folder: Path, *, with_standbys: bool) -> None:
        place = Place(folder.absolute())
        hosts, self._relay = cluster(place, seed) if with_standbys else ([], "")
        super().__init__(place, seed, hosts)
        self._script = script
        self._slots: dict[str, Slot] = {}
        self._seed = seed
        self._leader = self._hosts[0]
        self._stopped_at = 0.0
        self._killed: set[int] = set()
        self._due: list[Strike] = []
        self._requester = self._requester_named("person")
        self._requester.on_request = self._on_request
        self._prober = self._requester_named("probe")
        self._person = Person(self._requester, self._requests, GROUPS)

    @property
    def requested(self) -> int:
        """How many requests were carried out."""
        return self._person.done

    async def run(self, show: Callable[[], None]) -> None:
        """Play from the first start to the last end; ``show`` is called ten times a second."""
        own = None if self._relay else start_lighthouse(self._place)
        self._go(self._show(show))
        try:
            await self._start(own[1] if own else self._relay)
            self._place.timeline.add("begun")
            self.doing = STRIKING
            probing, requesting = self._go(self._probe()), self._go(self._request_all())
            await self._strike_all()
            self.doing = SETTLING
            await asyncio.gather(requesting, *self._frozen.values())
            await self._settle()
            self.doing = ENDING
            await probing
            for requester in (self._requester, self._prober):
                await requester.close()
            await self._end()
        finally:
            await self._cancel_all()
            if own:
                own[0].kill()
                own[0].wait()
            for line in self._place.left_over():
                if "lighthouse-relay" not in line:  # it is ours to end
                    self._place.timeline.add("left_over", command=line)
                strike(int(line.split()[1].rstrip(":")), signal.SIGKILL)

    # --- the start ---

    async def _start(self, lighthouse: str) -> None:
        await self._start_weaver()
        await self._until(
            lambda: give_join_file(self._place, self._hosts), START_S, "a file for trainers"
        )
        for group in GROUPS:
            rng = random.Random(f"{self._seed} {group}")
            slot = Slot(self._place, group, lighthouse, rng, self._wants_standby)
            slot.standby = group == GROUPS[-1]
            self._slots[group] = slot
            self._go(slot.keep_up())
        await self._until(self._trains, START_S, f"{TRAINING} groups that train")
        await self._until(
            lambda: self._slots[GROUPS[-1]].sidecar != 0, START_S, "a standby that is attached"
        )

    def _wants_standby(self) -> bool:
        return not any(slot.stands_by for slot in self._slots.values())

    def _trains_quietly(self) -> bool:
        training = [slot for slot in self._slots.values() if slot.alive and not slot.stands_by]
        return len(training) >= TRAINING and all(
            slot.steps_at > self._stopped_at + QUIET_S for slot in training
        )

    def _trains(self) -> bool:
        return sum(slot.steps for slot in self._slots.values()) >= TRAINING

    # --- striking and requesting ---

    async def _strike_all(self) -> None:
        began = time.monotonic()
        coming = list(self._script.strikes)
        while (coming or self._due) and time.monotonic() < began + self._script.last_s:
            while coming and coming[0].at_s <= time.monotonic() - began:
                self._due.append(coming.pop(0))
            # A strike whose target is missing waits; later ones may overtake it.
            self._due = [s for s in self._due if s.after_request_s is not None or not self._hit(s)]
            await asyncio.sleep(POLL_S)
        for left in [*self._due, *coming]:
            self._place.timeline.add("omitted", target=left.target, kind=left.kind)
        self._due.clear()

    def _on_request(self) -> None:
        """Trigger the first strike that waits for a request, while its commands travel."""
        for due in self._due:
            if due.after_request_s is not None and any(self._victim(due).pids):
                self._due.remove(due)
                loop = asyncio.get_running_loop()
                loop.call_later(due.after_request_s, self._hit_or_wait, due)
                return

    def _hit_or_wait(self, due: Strike) -> None:
        if not self._hit(due):
            self._due.append(due)

    def _hit(self, due: Strike) -> bool:
        victim = self._victim(due)
        pids = [pid for pid in victim.pids if pid and pid not in self._killed]
        if due.kind == "freeze":
            pids = [pid for pid in pids if pid not in self._frozen]
        if not pids:
            return False
        kill, slot = due.kind == "kill", victim.slot
        if kill and victim.host is not None and victim.host.weaver in pids:
            victim.host.struck = True
        if due.target in ("trainer", "lighthouse", "host"):
            self._stopped_at = time.time() + due.lasts_s
        if due.target == "trainer" and slot is not None:
            slot.struck = slot.struck or kill
        self._place.timeline.add(
            "strike",
            target=due.target,
            kind=due.kind,
            group=slot.group if slot else "",
            name=slot.name if slot else "",
            stands_by=slot.stands_by if slot else False,
            host=victim.host.number if victim.host else -1,
            pid=pids[0],
            due_s=due.at_s,
            lasts_s=due.lasts_s,
        )
        if kill:
            self._killed.update(pids)
        for pid in pids:
            self._kill_or_freeze(pid, due.kind, due.target, due.lasts_s)
        self.struck[f"{due.kind}s of {due.target}s"] += 1
        return True

    def _victim(self, due: Strike) -> Victim:
        """Return the processes to strike, none if there are none at present."""
        host = self._host(due)
        if len(self._hosts) > 1 and not self._survives(due.target, host):
            return NOBODY
        match due.target:
            case "weaver":
                return Victim((host.weaver,), host)
            case "broker":
                return Victim((host.broker,), host)
            case "lighthouse":
                serving = [one for one in self._hosts if one.lighthouse]
                return Victim((serving[0].lighthouse,), serving[0]) if serving else NOBODY
            case "host":
                return Victim((host.weaver, host.broker, host.lighthouse), host)
        slots = [slot for slot in self._slots.values() if slot.alive]
        # One trainer at a time: without a quorum there is no run to disturb.
        if not slots or (due.target == "trainer" and not self._trains_quietly()):
            return NOBODY
        slot = slots[int(due.pick * len(slots))]
        return Victim((slot.sidecar if due.target == "sidecar" else slot.pid,), None, slot)

    def _survives(self, target: str, host: Host) -> bool:
        """Return whether a cluster can go on without this one: nobody else restarts it."""
        others = [one for one in self._hosts if one is not host]
        match target:
            case "weaver":
                return any(self._stands_by(one) for one in others)
            case "broker":
                return any(one.broker and one.broker not in self._frozen for one in others)
            case "host":
                return self._trains_quietly() and any(
                    self._stands_by(one) and one.broker not in self._frozen for one in others
                )
            case "lighthouse":
                return self._trains_quietly()
        return True

    def _stands_by(self, host: Host) -> bool:
        return host.ready and host.weaver not in self._frozen

    def _host(self, due: Strike) -> Host:
        """Return the leader's host in half of the cases."""
        rest = [host for host in self._hosts if host is not self._leader]
        if due.pick < LEADER or not rest:
            return self._leader
        return rest[int((due.pick - LEADER) / (1 - LEADER) * len(rest))]

    async def _request_all(self) -> None:
        # Ended by a flag, not cancelled: nats-py may swallow a cancellation.
        for request in self._script.requests:
            await asyncio.sleep(request.gap_s)
            if self.doing != STRIKING:
                return
            await self._person.carry_out(request)

    async def _probe(self) -> None:
        """Request the status until the end."""
        while self.doing != ENDING:
            status = await self._prober.request("status")
            self._leader = leads(self._hosts, status) or self._leader
            await asyncio.sleep(PROBE_EVERY_S)

    # --- the end ---

    async def _settle(self) -> None:
        """Wait until all is undone and ended, and a last knob reaches every trainer."""
        began = time.monotonic()
        at_rest = await self._within(SETTLE_S, self._is_at_rest)
        reached = at_rest and await self._within(SETTLE_S, self._is_controlled)
        await self._within(DEADLINE_S + 10, self._has_no_flights)
        self._place.timeline.add(
            "settled", at_rest=at_rest, controlled=reached, seconds=time.monotonic() - began
        )

    async def _is_at_rest(self) -> bool:
        await self._person.undo_all()
        return self._weavers_are_ready() and self._trains() and await self._has_no_flights()

    async def _is_controlled(self) -> bool:
        await self._requester.request(
            "knob.set", {"knob": "counter", "value": FINAL_VALUE, "sure": True}
        )
        await asyncio.sleep(1)
        training = [s for s in self._slots.values() if s.alive and not s.stands_by]
        values = [[row["value"] for row in slot.events("set_knob")][-1:] for slot in training]
        return values == [[FINAL_VALUE]] * len(training)

    async def _has_no_flights(self) -> bool:
        status = await self._requester.request("status")
        return status is not None and not status["flights"]

    async def _within(self, limit_s: float, what: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if await what():
                return True
            await asyncio.sleep(0.3)
        return False

    async def _end(self) -> None:
        """End the trainers, wait for their sidecars, end the Weaver, wait for its server."""
        self._place.is_over = True
        self._place.timeline.add("ending")
        for slot in self._slots.values():
            if slot.process is not None:
                slot.struck = True
                slot.process.terminate()
        await self._gone("sidecar", SIDECAR_END_S)
        running = [host.process for host in self._hosts if host.weaver and host.process]
        for process in running:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while any(process.poll() is None for process in running):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        for host in self._hosts:
            status = host.process.poll() if host.process else None
            self._place.timeline.add("stopped", status=status, host=host.number)
        await self._gone("nats-server", 1.0)
        await self._gone("trajectory.sealing", SEALED_S)

    async def _gone(self, what: str, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        left = [line for line in self._place.left_over() if what in line]
        while time.monotonic() < end and left:
            await asyncio.sleep(0.2)
            left = [line for line in self._place.left_over() if what in line]
        for line in left:
            self._place.timeline.add("orphan", what=what, command=line)
