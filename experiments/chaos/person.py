"""A client that sends one request after the other, and repeats a request without an answer."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from experiments.chaos import record
from experiments.chaos.script import Request
from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import find_weaver
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.live.transport import ControlClient

ANSWER_S = 3.0
TRIES = 4
PAUSE_S = 0.5
TAKE_BACK_S = 60.0

Answer = dict[str, Any]


class Requester:
    """One connection to the run's server, renewed when it fails; records every request."""

    def __init__(self, connection: Connection, requests: record.Record, name: str) -> None:
        self._connection = connection
        self._requests = requests
        self._name = name
        self._client: ControlClient | None = None
        self.on_request: Callable[[], None] = lambda: None
        """Called before each request except the status."""

    async def request(self, verb: str, body: Answer | None = None) -> Answer | None:
        """Send a request once; return the answer, or None if there was none."""
        began = time.time()
        answer: Answer | None = None
        error = ""
        try:
            if self._client is None:
                address = find_weaver(self._connection)
                self._client = await ControlClient.connect(*address)
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
            "request",
            client=self._name,
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
    """Sends the scripted requests, one at a time, and waits for their answers."""

    def __init__(
        self, requester: Requester, requests: record.Record, groups: tuple[str, ...]
    ) -> None:
        self._requester = requester
        self._requests = requests
        self._groups = groups
        self._sent = 0
        self.done = 0

    async def carry_out(self, request: Request) -> None:
        """Send the request; undo a pause, a stop or a cordon after its time."""
        group = self._groups[int(request.pick * len(self._groups))]
        match request.kind:
            case "knob":
                body: Answer = {"knob": "counter", "value": request.value}
                if request.to_one:
                    body["worker"] = f"{group}-0"
                await self._insist("knob.set", body)
            case "checkpoint":
                action = {"kind": "checkpoint"} | ({"group": group} if request.to_one else {})
                await self._insist("propose", {"action": action})
            case "migrate" | "drain":
                await self._insist("propose", {"action": {"kind": request.kind, "group": group}})
            case "cordon":
                node = {"node": f"node-{group}"}
                if await self._insist("propose", {"action": {"kind": "cordon", **node}}):
                    await asyncio.sleep(request.lasts_s)
                    await self._until_undone("propose", {"action": {"kind": "uncordon", **node}})
            case "pause":
                self._requests.add("pause")
                await self._insist("propose", {"action": {"kind": "pause"}})
                await asyncio.sleep(request.lasts_s)
                await self.resume()
                self._requests.add("resumed")
            case "stop":
                await self._insist("actions.stop")
                await asyncio.sleep(request.lasts_s)
                await self._until_undone("actions.resume")
        self.done += 1

    async def undo_all(self) -> None:
        """Undo any stop, pause or cordon that is left."""
        await self._until_undone("actions.resume")
        await self.resume()
        status = await self._requester.request("status")
        for node in status["cordoned"] if status else ():
            await self._until_undone("propose", {"action": {"kind": "uncordon", "node": node}})

    async def resume(self) -> None:
        """Resume until no worker is paused and no pause is in progress."""
        end = time.monotonic() + TAKE_BACK_S
        while time.monotonic() < end:
            status = await self._requester.request("status")
            if status is not None:
                paused = [w for w in status["workers"] if w["state"] == "paused"]
                verbs = {"pause", "fenced_change", "resume"}
                coming = [f for f in status["flights"] if f["verb"] in verbs]
                if not paused and not coming:
                    return
                if paused:
                    await self._requester.request("propose", {"action": {"kind": "resume"}})
            await asyncio.sleep(PAUSE_S)

    async def _insist(self, verb: str, body: Answer | None = None) -> bool:
        """Send until there is an answer, a few times under one id; return whether it is yes."""
        self._sent += 1
        if body is not None:
            body = {**body, "id": f"request-{self._sent}"}
        for _ in range(TRIES):
            answer = await self._requester.request(verb, body)
            if answer is not None:
                return bool(answer.get("ok"))
            await asyncio.sleep(PAUSE_S)
        return False

    async def _until_undone(self, verb: str, body: Answer | None = None) -> None:
        """Send until the answer is positive, or shows that there is nothing to undo."""
        end = time.monotonic() + TAKE_BACK_S
        while time.monotonic() < end:
            answer = await self._requester.request(verb, body)
            if answer is not None and (answer["ok"] or "impossible" in answer["text"]):
                return
            await asyncio.sleep(PAUSE_S)
