"""Strategies for all inputs of a kernel, valid or not."""

import struct
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.alert import Alert
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
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.wire.actions import Action, ChangeKnob, ChangeKnobs
from torchloom_core.wire.commands import Ack, AckStatus
from torchloom_core.wire.events import (
    Backlog,
    DeliveryStatus,
    Forecast,
    NodeFault,
    PredictorFailed,
    Recovered,
    Tick,
    Withheld,
)
from torchloom_core.wire.links import Measured, ProbeAddress
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Note, Telemetry, WorkerState
from torchloom_core.wire.requests import (
    Annotate,
    Approve,
    Deny,
    Propose,
    ReleaseControl,
    Request,
    ResumeActions,
    StopActions,
    TakeControl,
)

WORKERS = ("a-0", "a-1", "b-0", "b-1", "c-0", "s-0", "s-1")
METRICS = ("heat", "loss", "unneeded_metric")
KNOBS = (
    KnobSpec(name="lr", kind="float", low=0.0, high=1.0),
    KnobSpec(name="every", kind="int", low=1),
    KnobSpec(name="mode", kind="choice", choices=("bf16", "fp32"), fence="run"),
)

workers = st.sampled_from([*WORKERS, "stranger"])
roles = st.sampled_from(["", "trainer", "rollout"])
groups = st.sampled_from(["a", "b", "c", "s", "nowhere"])
nodes = st.sampled_from(["n1", "n2", "n3", "node-a", "node-s", "nowhere"])
incarnations = st.integers(1, 3)
states = st.sampled_from(get_args(WorkerState))
floats = st.floats(width=64)
int64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
steps = st.integers(-1, 2**53)
values: st.SearchStrategy[Any] = st.one_of(
    st.booleans(), int64, finite, st.sampled_from(["bf16", ""])
)

probe_addresses = st.none() | st.builds(
    ProbeAddress, host=st.just("h"), port=st.integers(1, 3), token=st.just("0" * 64)
)
hellos = st.builds(
    lambda worker, group, **rest: Hello(run="run", worker=worker, group=group, rank=0, **rest),
    worker=workers,
    group=groups,
    incarnation=incarnations,
    node=st.sampled_from(["n1", "n2", "n3"]),
    rack=st.sampled_from(["", "r1"]),
    role=st.sampled_from(["trainer", "trainer", "rollout"]),
    state=states,
    knobs=st.lists(st.sampled_from(KNOBS), unique_by=lambda k: k.name).map(tuple),
    values=st.dictionaries(st.sampled_from(["lr", "every"]), values, max_size=2),
    actuators=st.sampled_from(
        [
            (),
            ("checkpoint",),
            ("fenced_change", "checkpoint", "saves_together"),
            ("checkpoint", "probe", "survey", "rehearse"),
        ]
    ),
    probe_address=probe_addresses,
)


@st.composite
def batches(draw: st.DrawFn, worker: st.SearchStrategy[str] = workers) -> Telemetry:
    metrics = tuple(draw(st.lists(st.sampled_from(METRICS), unique=True)))
    samples = draw(st.integers(0, 3)) if metrics else 0
    numbers = draw(
        st.lists(floats, min_size=samples * len(metrics), max_size=samples * len(metrics))
    )
    return Telemetry(
        run="run",
        worker=draw(worker),
        incarnation=draw(incarnations),
        seq=draw(st.integers(0, 9)),
        state=draw(states),
        step=draw(steps),
        progress_age_s=draw(st.floats(-1e9, 1e9)),
        metrics=metrics,
        ts_ns=bytes(8 * samples),
        values=struct.pack(f"<{len(numbers)}d", *numbers),
    )


exits = st.builds(
    Exit,
    run=st.just("run"),
    worker=workers,
    incarnation=incarnations,
    status=st.none() | st.integers(-64, 255),
    expected=st.booleans(),
)
notes = st.builds(
    Note,
    run=st.just("run"),
    worker=workers,
    incarnation=incarnations,
    kind=st.sampled_from(["fault", "hang", "quorum", "of_my_own"]),
)
acks = st.builds(
    Ack,
    command=st.builds("c{}.{}".format, st.integers(1, 2), st.integers(1, 12)),
    run=st.just("run"),
    worker=workers,
    incarnation=incarnations,
    epoch=st.integers(0, 3),
    status=st.sampled_from(get_args(AckStatus)),
    measured=st.none()
    | st.builds(
        Measured,
        bytes_per_s=st.floats(1.0, 1e15),
        latency_s=st.floats(0, 3600),
        spread=st.none() | st.floats(0, 1e6),
    ),
)
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Migrate, group=groups),
    st.builds(AdmitGroup, group=groups),
    st.builds(DrainGroup, group=groups),
    st.builds(EvictGroup, group=groups, then=st.sampled_from(["wait", "restart", "replace"])),
    st.builds(
        ChangeKnob,
        knob=st.sampled_from(["lr", "every", "mode", "lt"]),
        value=values,
        worker=st.none() | workers,
        role=st.just(msgspec.UNSET) | roles,
    ),
    st.builds(ChangeKnobs, values=st.dictionaries(st.just("mode"), values, min_size=1), role=roles),
    st.builds(SaveCheckpoint, group=st.none() | groups, role=roles),
    st.builds(PauseRun, role=roles),
    st.builds(ResumeRun, role=roles),
    st.builds(CollectDump, worker=workers),
    st.lists(workers, min_size=2, max_size=6, unique=True).map(
        lambda named: ProbeLinks(pairs=tuple(zip(named[::2], named[1::2], strict=False)))
    ),
    st.builds(MapLandscape, points=st.sampled_from([0, 100])),
    st.builds(
        PreviewChange,
        values=st.dictionaries(st.sampled_from(["lr", "every", "lt"]), values, max_size=2),
        steps=st.sampled_from([0, 100]),
    ),
    st.builds(Alert, worker=workers, text=st.just("look")),
    st.builds(CordonNode, node=nodes, lasts_s=st.sampled_from([None, 1.0, 90.0])),
    st.builds(UncordonNode, node=nodes),
)
wants = st.one_of(
    st.builds(Propose, action=actions),
    st.builds(StopActions),
    st.builds(ResumeActions),
    st.builds(Deny, proposal=st.builds("p1.{}".format, st.integers(1, 20))),
    st.builds(Approve, proposal=st.builds("p1.{}".format, st.integers(1, 20))),
    st.builds(TakeControl, lease_s=st.sampled_from([1.0, 60.0]), force=st.booleans()),
    st.builds(ReleaseControl),
    st.builds(Annotate, text=st.text(min_size=1, max_size=20)),
)
requests = st.builds(
    Request, id=st.just("r1"), want=wants, session=st.sampled_from(["", "", "ann", "bob.2"])
)
forecasts = st.builds(
    Forecast,
    id=st.just("f1.1"),
    predictor=st.sampled_from(["oracle", "unknown"]),
    horizon_s=st.just(60.0),
    hazard=st.dictionaries(workers, st.floats(0, 1)),
)
predictor_failures = st.builds(
    PredictorFailed,
    predictor=st.sampled_from(["oracle", "unknown"]),
    rule=st.just("raised"),
    detail=st.just("ValueError: no"),
)
node_faults = st.builds(
    NodeFault,
    node=nodes,
    kind=st.sampled_from(["xid", "power"]),
    ts_ns=st.integers(0, 10**19 // 2 - 1),
    id=st.sampled_from(["e1", "e2", "e3"]),
    fatal=st.booleans(),
)
ticks = st.builds(Tick)
backlogs = st.builds(Backlog, taken_until_ns=st.sampled_from([None, None, 0, 10**18]))
withhelds = st.builds(
    Withheld, commands=st.lists(st.builds("c1.{}".format, st.integers(1, 12))).map(tuple)
)
deliveries = st.builds(
    DeliveryStatus,
    effector=st.sampled_from(["a", "b"]),
    delivery=st.just("e1.2.1"),
    result=st.sampled_from(["delivered", "retrying", "given_up"]),
)
recoveries = st.builds(Recovered, epoch=st.integers(0, 3))

messages = st.one_of(
    hellos, hellos, batches(), exits, notes, acks, acks, requests, requests, ticks, ticks,
    forecasts, predictor_failures, recoveries, node_faults, backlogs, withhelds, deliveries,
)  # fmt: skip
delays_ns = st.sampled_from([0, 1, 10**9, 2 * 10**9, 70 * 10**9, -(10**9)])
ROSTER = [
    Hello(
        run="run",
        worker=worker,
        incarnation=1,
        group=worker[0],
        rank=int(worker[2]),
        node=f"node-{worker[0]}",
        state="standby" if worker[0] == "s" else "training",
        knobs=KNOBS,
        values={"lr": 0.1, "every": 5},
        actuators=("checkpoint", "probe"),
        probe_address=ProbeAddress(host="h", port=1, token="0" * 64),
    )
    for worker in WORKERS
]
scripts = st.lists(st.tuples(messages, delays_ns), min_size=15, max_size=60).map(
    lambda script: [(hello, 0) for hello in ROSTER] + script
)
"""Begins with the hellos of a healthy run."""
