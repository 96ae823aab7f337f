"""A real broker, and a Weaver with prepared answers."""

import asyncio
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.preloaded import Preloaded
from tests.settled import settle
from torchloom_core.floor.errors import RequestError
from torchloom_core.live.transport.broker.embedded import EmbeddedBroker
from torchloom_core.live.transport.lease import Lease
from torchloom_core.live.transport.operator import serve
from torchloom_core.live.transport.turns import Turns
from torchloom_core.wire import subjects
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import CommandStatus, KnobDesired, Outcome
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operator import Answer, KnobTable
from torchloom_core.wire.status import FlightStatus, PluginStatus, Status, Waiting, WorkerStatus

RUN = "digits"

STATUS = Status(
    run=RUN,
    epoch=3,
    ts_ns=0,
    stopped=True,
    dry_run=False,
    ticks=17,
    malformed=0,
    workers=(
        WorkerStatus(
            worker="g0-0",
            group="g0",
            node="node7",
            rack="r1",
            state="training",
            step=41,
            incarnation=1,
            heartbeat_age_s=0.2,
            progress_age_s=float("nan"),
            knobs={"lr": 0.1},
            metrics={"gpu_temp_celsius": 71.25},
            hazards={"trend": 0.93},
        ),
    ),
    flights=(FlightStatus(id="c3.1", worker="g0-0", verb="drain", status="accepted", age_s=2.0),),
    plugins=(PluginStatus(name="broken", kind="policy", state="quarantined", detail="raised: x"),),
    waiting=(
        Waiting(
            proposal="p3.4",
            policy="x",
            action="migrate",
            target="group:g0",
            summary="migrate group g0",
            reason="ECC errors",
        ),
    ),
    cordoned=("node7", "node9"),
    cordoned_until_ns={"node9": 172_800 * 10**9},
    trajectory=".torchloom/trajectory/digits",
    step_time_s=0.02,
)

KNOBS = KnobTable(
    specs=(KnobSpec(name="lr", kind="float", low=0.0, high=1.0),),
    desired=(KnobDesired(knob="lr", value=0.1),),
    values={"g0-0": {"lr": 0.1}, "g1-0": {"lr": 0.2}},
)


class PreparedWeaver:
    """Serve the control subjects of a run, in a thread with its own event loop."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self.result = "done"
        self.requests: list[tuple[str, Any]] = []
        self.ids: list[str | None] = []
        self.names: set[str] = set()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _run(self) -> None:
        self._over = asyncio.Event()
        self._client = await nats.connect(
            self._broker.url, user_credentials=str(self._broker.credentials.weaver_creds)
        )
        verbs = (
            "knob.set",
            "knob.unset",
            "propose",
            "approve",
            "deny",
            "actions.stop",
            "actions.resume",
        )
        handlers = {verb: self._doer(verb) for verb in verbs}
        handlers |= {"status": self._status, "knobs": self._knobs}
        await serve(self._client, RUN, handlers, Turns(), 1, Lease(None, RUN))
        await settle(self._client)
        self._started.set()
        await self._over.wait()
        await self._client.close()

    async def _status(self, _: bytes, by: str) -> bytes:
        if self.result == "broken":
            raise RequestError("the fleet is on fire")
        return encode(STATUS)

    async def _knobs(self, _: bytes, by: str) -> bytes:
        if self.result == "broken":
            raise RequestError("the fleet is on fire")
        return encode(KNOBS)

    def _doer(self, verb: str) -> Any:
        async def do(body: bytes, by: str) -> bytes:
            self.names.add(by)
            request = json.loads(body) if body else None
            self.ids.append(request.pop("id") if request else None)
            self.requests.append((verb, request))
            if self.result == "denied":
                return encode(Answer(ok=False, text="denied by cooldown: 12 s to go"))
            if verb.startswith("actions.") or verb == "knob.unset":
                return encode(Answer(ok=True, text=f"{verb} is done"))
            await self._send_statuses()
            return encode(Answer(ok=True, text="granted", ids=("c3.1",)))

        return do

    async def _send_statuses(self) -> None:
        """Send every status of one command before the answer."""
        # Another client may send an answer there.
        for kind in ("command_status", "outcome"):
            await self._client.publish(subjects.out(RUN, kind), b'{"ok": true, "text": ""}')
        for status in ("issued", "applied"):
            message = CommandStatus(
                command="c3.1", worker="g0-0", status=status, verb="set_knob", cause="p3.1", step=41
            )
            await self._client.publish(subjects.out(RUN, "command_status"), encode(message))
        if self.result == "never":
            return
        for verdict in ("p3.0", "p3.1"):
            outcome = Outcome(
                verdict=verdict,
                policy="person",
                action=ChangeKnob(knob="lr", value=0.1),
                result=self.result,
                detail=f"what came of {verdict}",
                took_s=0.1,
            )
            await self._client.publish(subjects.out(RUN, "outcome"), encode(outcome))


@dataclass
class Folder:
    """A working folder for ``torchloom``."""

    path: Path

    def torchloom(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NATS_")}
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            process = Preloaded(
                ["-m", "torchloom_core.cli", *arguments],
                cwd=self.path,
                env=inherited | environment,
                stdout=out,
                stderr=err,
                loads="commands",
            )
            status = process.wait(DEADLINE_S)
            texts = [file.seek(0) or file.read() for file in (out, err)]
        return subprocess.CompletedProcess(arguments, status, *texts)


@pytest.fixture
def folder(tmp_path):
    """An empty folder."""
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A folder with the embedded broker of a run, without a Weaver."""
    path = tmp_path_factory.mktemp("run")
    (path / "torchloom.toml").write_text(f"[run]\nname = '{RUN}'\n[policies.straggler]\n")
    broker = EmbeddedBroker(path / ".torchloom", RUN)
    asyncio.run(broker.start())
    yield Folder(path), broker
    asyncio.run(broker.stop())


@pytest.fixture
def run(run_folder):
    """The folder alone, with no Weaver."""
    return run_folder[0]


@pytest.fixture
def weaver(run_folder):
    """A Weaver with prepared answers."""
    prepared = PreparedWeaver(run_folder[1])
    prepared.start()
    yield prepared
    prepared.stop()
