"""Play a script on a live run: change knobs and strike, let it settle, and end it."""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.chaos.live_play import LivePlay, PlayError
from experiments.chaos.processes import POLL_S, START_S, Place, Slot, strike
from experiments.fence_soak.script import Algorithm, Change, Strike, fits
from torchloom_core.live.transport.ports import lasting_port

HERE = Path(__file__).parent
GROUPS = ("g0", "g1", "g2")
REPEAT_S = 0.3
GRANT_S = 90.0
SETTLE_S = 90.0
TOGETHER_S = 3.0
CONFIG = """
[run]
name = "soak"

[weaver]
state_dir = "{{state}}"
tick_s = 0.25
command_deadline_s = {{deadline_s:g}}

[lighthouse]
port = {port}
status_port = 0
heartbeat_timeout_s = 1.0
join_timeout_s = 10.0

[arbiter]
cooldown_s = 0

[guard]
metric = ""
"""
TUNER = """
[policies.allreduce_tuner]
guard_window_s = 5.0
cooldown_s = 2.0
forgive_s = 20.0

[policies.allreduce_tuner.quality]
topk = 0.8
powersgd = 0.9
"""


class Play(LivePlay):
    """One live run, its changes and its strikes."""

    def __init__(self, script: list[Change], seed: int, folder: Path, algorithm: Algorithm) -> None:
        port = lasting_port("127.0.0.1")
        config = CONFIG.format(port=port) + (TUNER if algorithm == "tuned" else "")
        super().__init__(Place(folder.absolute(), config), seed)
        self._script = script
        self._algorithm = algorithm
        self._slots = [
            Slot(
                self._place,
                group,
                f"http://localhost:{port}",
                random.Random(f"{seed} {group}"),
                lambda: False,
                HERE / "trainer.py",
                ("--algorithm", algorithm),
            )
            for group in GROUPS
        ]
        self._requester = self._requester_named("soak")
        self._strikes: list[asyncio.Task[None]] = []
        self.requested = 0

    async def run(self, show: Callable[[], None]) -> None:
        """Play from the first start to the last end; ``show`` is called ten times a second."""
        self._go(self._show(show))
        try:
            await self._start()
            self._place.timeline.add("begun")
            self.doing = "changing"
            for change in self._script:
                await self._change(change)
            self.doing = "settling"
            await asyncio.gather(*self._strikes)
            await asyncio.gather(*self._frozen.values())
            await self._settle()
        finally:
            self._place.is_over = True
            self._place.timeline.add("ending")
            await self._cancel_all()
            await self._requester.close()
            while left := self._place.left_over():  # again: a Weaver starts its lighthouse anew
                for line in left:
                    strike(int(line.split()[1].rstrip(":")), signal.SIGKILL)
                await asyncio.sleep(POLL_S)

    async def _start(self) -> None:
        await self._start_weaver()
        for slot in self._slots:
            self._go(slot.keep_up())
        await self._until(lambda: self._trains(0.0), START_S, "groups that train together")

    def _trains(self, after_s: float) -> bool:
        """Return whether all groups train together in one quorum since ``after_s``."""
        lasts = [slot.events("step")[-1:] for slot in self._slots if slot.alive]
        if len(lasts) < len(GROUPS) or not all(lasts):
            return False
        rows = [last[0] for last in lasts]
        steps = [row["step"] for row in rows]
        return (
            len({row["quorum"] for row in rows}) == 1
            and max(steps) - min(steps) <= 2
            and all(row["committed"] and row["t"] > after_s for row in rows)
        )

    # --- changing ---

    async def _change(self, change: Change) -> None:
        await asyncio.sleep(change.gap_s)
        early_s = max([0.0, *(-due.after_s for due in change.strikes)])
        now = asyncio.get_running_loop().time()
        for due in change.strikes:
            at = now + early_s + due.after_s
            self._strikes.append(self._go(self._hit_at(at, due)))
        await asyncio.sleep(early_s)
        if change.values:
            await self._request(change)
        self.requested += 1

    async def _request(self, change: Change) -> None:
        (knob, value), *also = change.values.items()
        body: dict[str, Any] = {"knob": knob, "value": value, "also": dict(also), "sure": True}
        end = time.monotonic() + GRANT_S
        tries = 0
        while True:
            answer = await self._requester.request(
                "knob.set", {**body, "id": f"change-{change.number}-{tries}"}
            )
            if answer is not None and answer["ok"]:
                self._place.timeline.add("granted", change=change.number, refused=tries)
                break
            if answer is not None and not fits(change.values, self._algorithm):
                self._place.timeline.add("refused", change=change.number)
                break
            if answer is not None:
                tries += 1  # refused, for instance because no worker can change it now
            if time.monotonic() > end:
                raise PlayError(f"change {change.number} is not granted: {answer}")
            await asyncio.sleep(REPEAT_S)

    # --- strikes ---

    async def _hit_at(self, at: float, due: Strike) -> None:
        await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
        pid, slot = self._victim(due)
        if pid == 0 or pid in self._frozen:
            self._place.timeline.add("omitted", target=due.target, kind=due.kind)
            return
        kill = due.kind == "kill"
        if kill and due.target == "weaver":
            self._hosts[0].struck = True
        if kill and due.target == "trainer" and slot is not None:
            slot.struck = True
        self._place.timeline.add(
            "strike",
            target=due.target,
            kind=due.kind,
            name=slot.name if slot else "",
            pid=pid,
            lasts_s=due.lasts_s,
        )
        self._kill_or_freeze(pid, due.kind, due.target, due.lasts_s)
        self.struck[f"{due.kind} {due.target}"] += 1

    def _victim(self, due: Strike) -> tuple[int, Slot | None]:
        """Return the process to strike, or 0: one group with the weights must remain."""
        if due.target == "weaver":
            return self._hosts[0].weaver, None
        if due.target == "broker":
            return self._hosts[0].broker, None
        slots = [slot for slot in self._slots if slot.alive]
        if due.target == "sidecar":
            slot = slots[int(due.pick * len(slots))] if slots else None
            return (slot.sidecar if slot else 0), slot
        # A trainer killed a moment ago may still look alive.
        slots = [slot for slot in slots if not slot.struck and slot.pid not in self._frozen]
        trained = [slot for slot in slots if slot.steps]
        if not slots:
            return 0, None
        slot = slots[int(due.pick * len(slots))]
        spares = [other for other in trained if other is not slot]
        return (slot.pid if spares else 0), slot

    # --- the end ---

    async def _settle(self) -> None:
        """Wait until no command is in progress and all groups train together again."""
        began, end, settled = time.time(), time.monotonic() + SETTLE_S, False
        while not settled and time.monotonic() < end:
            await asyncio.sleep(REPEAT_S)
            status = await self._requester.request("status")
            settled = status is not None and not status["flights"] and self._trains(began)
        ready = time.time() + TOGETHER_S
        while settled and not self._trains(ready) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(REPEAT_S)
        self._place.timeline.add("settled", at_rest=settled and self._trains(ready))
