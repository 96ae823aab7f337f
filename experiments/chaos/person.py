"""A person at the command line: asks for one thing after the other, and again if nobody answers."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from experiments.chaos import record
from experiments.chaos.script import Wish
from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import find_weaver
from torchloom_core.errors import TorchloomError
from torchloom_core.transport import ControlClient

ANSWER_S = 3.0
TRIES = 4
PAUSE_S = 0.5
TAKE_BACK_S = 60.0

Answer = dict[str, Any]


class Asker:
    """One connection to the run's server, made anew when it fails; every request is on record."""

    def __init__(self, connection: Connection, requests: record.Record, name: str) -> None:
        self._connection = connection
        self._requests = requests
        self._name = name
        self._client: ControlClient | None = None
        self.on_request: Callable[[], None] = lambda: None
        """Called when something other than the status is about to be asked."""

    async def ask(self, verb: str, body: Answer | None = None) -> Answer | None:
        """Ask once; return the answer, or None if there was none."""
        began = time.time()
        answer: Answer | None = None
        error = ""
        try:
            if self._client is None:
                address = find_weaver(self._connection)
                self._client = await ControlClient.connect(address.url, address.run, address.creds)
            began = time.time()
            data = json.dumps(body).encode() if body is not None else b""
            if verb != "status":
                self.on_request()
            answer = json.loads(await self._client.ask(verb, data, ANSWER_S))
        except TorchloomError as failure:
            error = str(failure)
            await self.close()
        brief = answer if answer is not None and "ok" in answer else {}
        self._requests.add(
            "asked",
            who=self._name,
            verb=verb,
            body=body,
            began=began,
            seconds=time.time() - began,
            answered=answer is not None,
            answer=brief,
            error=error,
        )
        return answer

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TorchloomError, TimeoutError):
                await client.close()


class Person:
    """Carries out wishes, one at a time, as somebody does who wants to see them done."""

    def __init__(self, asker: Asker, requests: record.Record, groups: tuple[str, ...]) -> None:
        self._asker = asker
        self._requests = requests
        self._groups = groups
        self._asked = 0
        self.done = 0

    async def wish(self, wish: Wish) -> None:
        """Ask for it; take back what is to be held only for a while."""
        group = self._groups[int(wish.pick * len(self._groups))]
        match wish.kind:
            case "knob":
                body: Answer = {"knob": "tally", "value": wish.value}
                if wish.to_one:
                    body["worker"] = f"{group}-0"
                await self._insist("knob.set", body)
            case "checkpoint":
                action = {"kind": "checkpoint"} | ({"group": group} if wish.to_one else {})
                await self._insist("propose", {"action": action})
            case "migrate" | "drain":
                await self._insist("propose", {"action": {"kind": wish.kind, "group": group}})
            case "cordon":
                node = {"node": f"node-{group}"}
                if await self._insist("propose", {"action": {"kind": "cordon", **node}}):
                    await asyncio.sleep(wish.hold_s)
                    await self._until_calm("propose", {"action": {"kind": "uncordon", **node}})
            case "pause":
                self._requests.add("pause")
                await self._insist("propose", {"action": {"kind": "pause"}})
                await asyncio.sleep(wish.hold_s)
                await self.resume()
                self._requests.add("resumed")
            case "stop":
                await self._insist("actions.stop")
                await asyncio.sleep(wish.hold_s)
                await self._until_calm("actions.resume")
        self.done += 1

    async def make_calm(self) -> None:
        """Take back whatever may still be held: a stop, a pause, a cordon."""
        await self._until_calm("actions.resume")
        await self.resume()
        status = await self._asker.ask("status")
        for node in status["cordoned"] if status else ():
            await self._until_calm("propose", {"action": {"kind": "uncordon", "node": node}})

    async def resume(self) -> None:
        """Resume until nobody is paused and no pause is under way."""
        end = time.monotonic() + TAKE_BACK_S
        while time.monotonic() < end:
            status = await self._asker.ask("status")
            if status is not None:
                paused = [w for w in status["workers"] if w["state"] == "paused"]
                verbs = {"pause", "fenced_change", "resume"}
                coming = [f for f in status["flights"] if f["verb"] in verbs]
                if not paused and not coming:
                    return
                if paused:
                    await self._asker.ask("propose", {"action": {"kind": "resume"}})
            await asyncio.sleep(PAUSE_S)

    async def _insist(self, verb: str, body: Answer | None = None) -> bool:
        """Ask until there is an answer, a few times under one id; return whether it was yes."""
        self._asked += 1
        if body is not None:
            body = {**body, "id": f"wish-{self._asked}"}
        for _ in range(TRIES):
            answer = await self._asker.ask(verb, body)
            if answer is not None:
                return bool(answer.get("ok"))
            await asyncio.sleep(PAUSE_S)
        return False

    async def _until_calm(self, verb: str, body: Answer | None = None) -> None:
        """Ask until the answer is yes, or that there is nothing to take back."""
        end = time.monotonic() + TAKE_BACK_S
        while time.monotonic() < end:
            answer = await self._asker.ask(verb, body)
            if answer is not None and (answer["ok"] or "impossible" in answer["text"]):
                return
            await asyncio.sleep(PAUSE_S)
