"""A complete message of every kind, as plain values; the sender fills in the worker's name."""

import struct
import time
from typing import Any

import msgspec

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.annotate_node import AnnotateNode
from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.capabilities.regroup import RegroupWorkers
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.live.transport.owner import Owner
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.links import Measured, ProbeAddress
from torchloom_core.wire.messages import (
    Exit,
    Hello,
    JoinRequest,
    KnobSpec,
    Note,
    PauseState,
    Telemetry,
)
from torchloom_core.wire.operations import Checkpoint, SetKnob
from torchloom_core.wire.steering import LighthouseView
from torchloom_threadlet import ipc

RUN = "fuzz"


def telemetry(worker: str, incarnation: int = 1) -> dict[str, Any]:
    """Return a batch of two samples of two metrics."""
    batch = Telemetry(
        run=RUN,
        worker=worker,
        incarnation=incarnation,
        seq=3,
        state="training",
        step=7,
        progress_age_s=0.5,
        dropped=1,
        metrics=("loss", "gpu_temp_celsius"),
        ts_ns=struct.pack("<2q", 10**18, 10**18 + 1),
        values=struct.pack("<4d", 1.0, 50.0, 0.9, 51.0),
    )
    return plain(batch)


def events(worker: str, incarnation: int = 1) -> list[dict[str, Any]]:
    """Return a hello, an exit, and notes."""
    sender: dict[str, Any] = {"run": RUN, "worker": worker, "incarnation": incarnation}
    now_ns = time.time_ns()
    lr = KnobSpec(name="lr", kind="float", low=0.0, high=1.0, unit="1", doc="rate")
    mode = KnobSpec(name="mode", kind="choice", choices=("bf16", "fp32"), fence="run")
    hello = Hello(
        **sender,
        group=worker.rpartition("-")[0] or worker,
        rank=int(worker.rpartition("-")[2]),
        node=f"node-{worker}",
        rack="r1",
        host="host",
        probe_address=ProbeAddress(host="127.0.0.1", port=1, token="0" * 64),
        pid=7,
        knobs=(lr, mode),
        values={"lr": 0.1, "mode": "bf16"},
        actuators=("checkpoint", "set_knob"),
        framework="fuzz",
        ts_ns=now_ns,
    )
    note = Note(**sender, kind="hang", step=3, fields={"age": 1.5, "stacks": "s"}, ts_ns=now_ns)
    fault = Note(**sender, kind="fault", step=3, fields={"xid": 79, "none": None}, ts_ns=now_ns)
    ended = Exit(**sender, status=-9, expected=False, step=4, error="boom", ts_ns=now_ns)
    return [plain(message) for message in (hello, hello, note, fault, ended)]


def large_note(worker: str, incarnation: int = 1) -> dict[str, Any]:
    """Return a note that is sent on the subject of large events."""
    fields = {"stacks": "x" * 40_000}
    return plain(Note(run=RUN, worker=worker, incarnation=incarnation, kind="dump", fields=fields))


def ack(worker: str, incarnation: int = 1) -> dict[str, Any]:
    """Return an ack."""
    return plain(
        Ack(
            command="c1.1",
            run=RUN,
            worker=worker,
            measured=Measured(bytes_per_s=1e6, latency_s=0.001, spread=0.1),
            incarnation=incarnation,
            epoch=1,
            status="applied",
            step=4,
            detail="done",
            ts_ns=1,
        )
    )


def join_request(worker: str, public_key: str, incarnation: int = 1) -> dict[str, Any]:
    """Return a request for credentials."""
    return plain(
        JoinRequest(
            run=RUN,
            worker=worker,
            incarnation=incarnation,
            public_key=public_key,
            group="w",
            node="node-w",
            within_s=2.0,
        )
    )


def lighthouse_view() -> dict[str, Any]:
    """Return a view of the lighthouse."""
    groups = ("g0:1", "g1:2")
    names = dict.fromkeys(("members", "failed", "silent", "lost", "held", "aside"), groups)
    return plain(
        LighthouseView(run=RUN, incarnation=5, quorum_id=7, epoch=1, number=2, refused="", **names)
    )


def owner() -> dict[str, Any]:
    """Return what a standby announces."""
    return plain(
        Owner(host="host", pid=7, folder="/state", folder_id="1", since_ns=10**18, age_s=2.0)
    )


def bodies() -> list[tuple[str, Any]]:
    """Return ``(verb, body)`` of every request that a person may make."""
    actions: list[Any] = [
        Migrate(group="g0"),
        DrainGroup(group="w"),
        ChangeKnob(knob="x", value=1.5, worker="g0-0"),
        SaveCheckpoint(group="g0"),
        ProbeLinks(pairs=(("g0-0", "g1-0"),)),
        CollectDump(worker="g0-0"),
        MapLandscape(points=100),
        PreviewChange(values={"lr": 0.1}),
        Alert(worker="g0-0", text="look"),
        CordonNode(node="node-w", lasts_s=60.0),
        UncordonNode(node="node-w"),
        PauseRun(),
        ResumeRun(),
        ResumeRun(),
        AdmitGroup(group="w"),
        AnnotateNode(node="node-w", text="look"),
        AssignRole(group="w", to="rollout"),
        EvictGroup(group="w"),
        RegroupWorkers(role="none", without=("w-0",)),
        RewindRun(skip=2, role="none"),
        SuspendRun(role="none"),
        ChangeKnobs(values={"x": 1.5, "lr": 0.1}, guard=Guard(metric="loss")),
    ]
    return [
        ("status", {"after": "g0-0"}),
        ("knobs", {}),
        ("knob.set", {"knob": "x", "value": 2.5, "worker": "g0-0", "sure": True, "id": "a1"}),
        ("knob.set", {"knob": "x", "value": 3.5}),
        *(("knob.set", {"knob": "lr", "value": 0.1, "worker": f"w-{n}"}) for n in range(3)),
        ("knob.unset", {"knob": "x", "worker": "g0-0"}),
        ("approve", {"proposal": "p1.1"}),
        ("deny", {"proposal": "p1.1", "reason": "repaired", "id": "a2"}),
        ("annotate", {"text": "look", "id": "a3", "session": "ann.1"}),
        ("control.take", {"session": "ann.1", "lease_s": 1.0, "force": True}),
        ("control.release", {"session": "ann.1"}),
        ("access", {}),
        ("access.revoke", {"kind": "worker", "name": "w-9", "undo": True}),
        ("access.revoke", {"kind": "person", "name": "nobody"}),
        ("actions.stop", {}),
        ("actions.resume", {}),
        *(("propose", {"action": plain(action)}) for action in actions),
    ]


def command(worker: str) -> dict[str, Any]:
    """Return a command to set a knob."""
    now_ns = time.time_ns()
    return plain(
        Command(
            id="c1.1",
            run=RUN,
            worker=worker,
            incarnation=1,
            epoch=1,
            issued_ns=now_ns,
            deadline_ns=now_ns + 10**11,
            do=SetKnob(knob="x", value=1.5),
            cause="p1.1",
        )
    )


def to_sidecar(worker: str) -> list[dict[str, Any]]:
    """Return every frame that a trainer sends after its attach."""
    hello, _, note, *_ = events(worker)
    samples = ipc.Samples(
        state="training", step=4, progress_ns=time.monotonic_ns(), rows=[(10**18, {"loss": 1.0})]
    )
    final = ack(worker)
    return [
        *map(plain, (samples, ipc.Flight(text="{}"), ipc.Goodbye(error="boom"))),
        {**hello, "incarnation": 1},
        note,
        final,
    ]


def to_link(worker: str) -> list[dict[str, Any]]:
    """Return every frame that a sidecar sends."""
    lines = (
        ipc.Keys(seed="SUAAA", jwt="eyJ"),
        ipc.Sent(batches=3, dropped=1),
        ipc.Stored(command="c1.1", epoch=1),
        ipc.FlightRequest(),
        ipc.Admission(unwanted="cordoned"),
        PauseState(run=RUN, epoch=1, verdict="p1.1", over="p1.2"),
    )
    pause = {**command(worker), "do": plain(Checkpoint())}
    return [*map(plain, lines), command(worker), pause]


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """Return a message as plain values."""
    # By msgpack, which keeps bytes bytes and writes out what is left at its default.
    table: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return table
