"""A recorded incarnation as a bundle: its events, and every input bit for bit."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cyclopts import App
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.inputs import scripts
from tests.kernel.runs import START_NS, Calls, active, hello, proposal, telemetry
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.cli.trace_make_commands import from_trajectory as command
from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import StateError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.recorded.recorded import (
    from_trajectory,
    recorded_incarnation,
    recorded_inputs,
)
from torchloom_core.lab.trace.validation.validate import validate
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.plugin import FleetView, Need
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode, encode_telemetry
from torchloom_core.wire.decisions import Output, PolicyFailed, Proposal
from torchloom_core.wire.events import Input, NodeFault, Recovered, Tick
from torchloom_core.wire.messages import Exit, Note, Telemetry

CONFIG = parse("[arbiter]\ncooldown_s = 1.0\nmin_groups = 0\nmax_in_motion_share = 1.0\n")


def worry(view: FleetView) -> list[Proposal]:
    """Alert about a hot worker, and lower its learning rate."""
    hot = [w for w, heat in zip(view.workers, view.latest("heat"), strict=True) if heat > 90]
    alerts = [proposal(Alert(worker=worker, text="hot")) for worker in hot]
    knobs = [proposal(ChangeKnob(knob="lr", value=0.05, worker=worker)) for worker in hot]
    drains = [proposal(DrainGroup(group=worker[0])) for worker in hot if view.now_ns % 3 == 0]
    return [*alerts, *knobs, *drains]


def make_kernel(config: Config, guard: RecordedGuard) -> Kernel:
    policies = (active("calls", Calls(worry, [Need("heat")])),)
    return Kernel(config, ActivePlugins(policies, {}), guard)


def record(
    root: Path,
    script: Sequence[tuple[Telemetry | Input, int]],
    *,
    epoch: int = 1,
    config: Config = CONFIG,
) -> list[bytes]:
    """Drive a kernel through ``(message, delay)`` as a Weaver does; return its outputs."""
    kernel = make_kernel(config, RecordedGuard())
    writer = TrajectoryWriter(root, "run", epoch, config, {"calls": "1"}, START_NS)
    now_ns, written = START_NS, []
    for message, delay_ns in [(Recovered(epoch=epoch), 0), *script]:
        now_ns += delay_ns
        outputs = kernel.step(message, now_ns)
        written += list(map(encode, outputs))
        if isinstance(message, Telemetry):
            writer.telemetry(encode_telemetry(message), now_ns)
        else:
            writer.event(message, now_ns, outputs)
    writer.close()
    return written


def again(trace: Bundle) -> list[bytes]:
    """Return what a fresh kernel gives out on a bundle's inputs."""
    incarnation = recorded_incarnation(trace)
    kernel = make_kernel(incarnation.config, RecordedGuard(incarnation.overruns))
    outputs: list[Output] = []
    for ts_ns, message in recorded_inputs(trace):
        outputs += kernel.step(message, ts_ns)
    return list(map(encode, outputs))


def exported(folder: Path, **options: Any) -> Bundle:
    out = folder / "recorded.tltrace"
    from_trajectory(folder / "run", out, **options)
    return Bundle.open(out)


def heat(worker: str, *values: float, **changes: Any) -> Telemetry:
    times = [START_NS + number * SECOND_NS for number in range(len(values))]
    return telemetry(
        worker,
        {"heat": 0.0},
        ts_ns=struct.pack(f"<{len(values)}q", *times),
        values=struct.pack(f"<{len(values)}d", *values),
        **changes,
    )


S = SECOND_NS
SCRIPT: list[tuple[Telemetry | Input, int]] = [
    (hello("a-0", rack="r0"), S),
    (hello("b-0", rack="r0"), 0),
    (hello("s-0", state="standby"), 0),
    (heat("a-0", 60.0, 95.0), S),
    (heat("b-0", float("nan"), 61.0), 0),
    (heat("stranger-0", 61.0), 0),
    (Tick(), S),
    (Note(run="run", worker="b-0", incarnation=1, kind="fault", fields={"xid": 79},
          ts_ns=START_NS + 4 * S), 2 * S),
    (Note(run="run", worker="b-0", incarnation=1, kind="quorum"), 0),
    (Exit(run="run", worker="b-0", incarnation=1, status=-9, expected=False,
          ts_ns=START_NS + 5 * S), S),
    (Exit(run="run", worker="b-0", incarnation=1, status=-9, expected=False), 0),
    (Tick(), S),
    (NodeFault(node="elsewhere", kind="power", ts_ns=START_NS - 9 * S, id="nf1"), 0),
    (hello("b-0", rack="r0", incarnation=2), 10 * S),
    (Exit(run="run", worker="s-0", incarnation=1, status=0, expected=True), 5 * S),
    (Tick(), S),
]  # fmt: skip


def seconds(ts_ns: int | None) -> float | None:
    return None if ts_ns is None else (ts_ns - START_NS) / SECOND_NS


@settings(max_examples=examples(60))
@given(script=scripts, hot=st.floats(80, 99))
def test_recorded_inputs_are_returned_exactly(script, hot, tmp_path_factory):
    folder = tmp_path_factory.mktemp("incarnation")
    # A Weaver's clock does not run backwards, and JSON, of which the record is, has no infinity.
    forward = [(m, max(0, delay_ns)) for m, delay_ns in script if "inf" not in repr(m)]
    written = record(folder / "run", [*forward, (heat("a-0", hot), 0), (Tick(), S)])
    trace = exported(folder)
    inputs = [(r.ts_recv_ns, r.message) for r in read_epochs(folder / "run")[0].inputs()]
    assert repr(list(recorded_inputs(trace))) == repr(inputs)
    assert again(trace) == written


def test_the_rows_contain_what_happened_and_the_verdicts_are_the_same(tmp_path):
    written = record(tmp_path / "run", SCRIPT)
    trace = exported(tmp_path)
    assert again(trace) == written
    topology = {part.id: part for part in trace.topology()}
    assert set(topology) == {
        "r0", "node-a", "node-a/a-0", "node-b", "node-b/b-0", "node-s", "node-s/s-0", "elsewhere",
    }  # fmt: skip
    assert topology["node-b/b-0"].parents == ("node-b",)
    assert topology["node-b"].parents == ("r0",)
    assert seconds(topology["node-s"].until_ns) == 22
    assert topology["node-b"].until_ns is None

    events = [
        (e.id, e.component, seconds(e.t_event), seconds(e.t_avail), e.fatal, seconds(e.t_resolved))
        for e in trace.events()
    ]
    assert events == [
        ("nf1", "elsewhere", 0, 7, False, None),
        (f"b-0/fault:{START_NS + 4 * S}", "node-b/b-0", 4, 5, False, None),
        ("b-0/exit:1", "node-b/b-0", 5, 6, True, 17),
    ]
    assert validate(trace.path).faults == ()
    (job,) = trace.jobs()
    assert (job.id, job.groups, job.censored) == ("run", 2, True)
    placed = {
        (place.group, seconds(place.from_ns), seconds(place.until_ns))
        for place in trace.placement()
    }
    assert placed == {("a", 1, None), ("b", 1, 6), ("b", 17, None), ("s", 1, 22)}


def test_an_incarnation_numbered_by_a_clock_that_went_back_is_placed_like_any_other(tmp_path):
    back = [(hello("b-0", rack="r0", incarnation=0), 10 * S) if m is SCRIPT[-3][0] else (m, after)
            for m, after in SCRIPT]  # fmt: skip
    record(tmp_path / "run", back)
    placed = {(p.group, seconds(p.from_ns)) for p in exported(tmp_path).placement()}
    assert ("b", 17) in placed


def test_what_was_granted_is_an_action_on_every_worker_it_was_about(tmp_path):
    record(tmp_path / "run", SCRIPT)
    actions = exported(tmp_path).actions()
    assert {(a.kind, a.component) for a in actions} == {
        ("alert", "node-a/a-0"),
        ("drain", "node-a/a-0"),
        ("knob", "node-a/a-0"),
    }
    alert = next(a for a in actions if a.kind == "alert")
    assert (alert.actor, seconds(alert.t_event), seconds(alert.t_end)) == ("calls", 3, 3)
    assert alert.extra["result"] == "done"


def test_telemetry_is_there_by_the_time_it_was_received(tmp_path):
    record(tmp_path / "run", SCRIPT)
    (table,) = exported(tmp_path).telemetry()
    rows = [
        (seconds(row["t_event"]), seconds(row["t_avail"]), row["component"], row["valid"])
        for row in table.to_pylist()
    ]
    assert rows == [
        (0, 2, "node-a/a-0", True),
        (0, 2, "node-b/b-0", False),
        (1, 2, "node-a/a-0", True),
        (1, 2, "node-b/b-0", True),
    ]


def test_it_feeds_like_any_other_trace(tmp_path):
    record(tmp_path / "run", SCRIPT)
    feed = Feed(exported(tmp_path), tick_s=1.0, repair_s=60.0)
    assert feed.watched.ids == ("elsewhere", "node-a", "node-b", "node-s")
    assert feed.metrics == ("heat",)
    died = [message.worker for _, message in feed if isinstance(message, Exit)]
    assert died == ["node-b", "node-s"]


def test_the_newest_incarnation_is_used_unless_an_epoch_is_given(tmp_path):
    for epoch in (1, 2, 4):
        record(tmp_path / "run", SCRIPT[: 3 * epoch], epoch=epoch)
    assert "epoch 4" in exported(tmp_path).manifest.source
    assert "epoch 2" in exported(tmp_path, epoch=2, force=True).manifest.source
    with pytest.raises(TraceError, match=r"need a recorded epoch \(1, 2, 4\), was 3"):
        exported(tmp_path, epoch=3, force=True)


def test_the_command_writes_the_bundle_and_prints_its_manifest(tmp_path, capsys):
    record(tmp_path / "run", SCRIPT)
    app = App()
    app.default(command)
    out = str(tmp_path / "x.tltrace")
    app([str(tmp_path / "run"), out, "--epoch", "1", "--json"], result_action="return_value")
    printed = msgspec.json.decode(capsys.readouterr().out)
    assert printed["files"]["inputs.jsonl"]["rows"] == len(SCRIPT) + 2
    assert printed["synthetic"] is False


def test_no_trajectory_is_one_clear_line(tmp_path):
    with pytest.raises(StateError, match="no such folder: need the folder of a trajectory"):
        from_trajectory(tmp_path / "nowhere", tmp_path / "x.tltrace")
    (tmp_path / "empty" / "epoch-000001").mkdir(parents=True)
    with pytest.raises(TraceError, match="need a recorded incarnation of a Weaver, was none"):
        from_trajectory(tmp_path / "empty", tmp_path / "x.tltrace")


def test_a_policy_that_took_too_long_does_so_again(tmp_path):
    writer = TrajectoryWriter(tmp_path / "run", "run", 1, CONFIG, {}, START_NS)
    slow = PolicyFailed(policy="calls", rule="overran", detail="took more than 0.5 s")
    writer.event(Tick(), START_NS + S, [slow])
    writer.close()
    trace = exported(tmp_path)
    assert recorded_incarnation(trace).overruns == [(1, "calls", "took more than 0.5 s")]
    assert again(trace) == [encode(slow)]


def test_an_incarnation_with_a_recording_gap_is_a_trace_too(tmp_path):
    writer = TrajectoryWriter(tmp_path / "run", "run", 1, CONFIG, {}, START_NS)
    ticks = [(Tick(), START_NS + number * S) for number in range(1, 8)]
    for number, (tick, ts_ns) in enumerate(ticks):
        if number == 3:
            writer.flush()
            writer.pause("no space left")
        writer.event(tick, ts_ns, ())
    gap = writer.resume()
    for message in (gap, Tick()):
        writer.event(message, START_NS + 9 * S, ())
    writer.close()
    inputs = list(recorded_inputs(exported(tmp_path)))
    assert inputs == [
        *((t, m) for m, t in ticks[:3]),
        *((START_NS + 9 * S, m) for m in (gap, Tick())),
    ]
    assert (gap.first, gap.last, gap.first_ns, gap.last_ns) == (4, 7, ticks[3][1], ticks[6][1])


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda lines: lines[:3] + lines[4:], r"inputs.jsonl:4: need input 3, was 4"),
        (lambda lines: [*lines[:5], b'{"seq":\n'], r"inputs.jsonl:6: "),
        (
            lambda lines: [*lines[:1], b'{"seq":1,"ts_ns":1,"telemetry":"x"}\n'],
            "inputs.jsonl:2: ",
        ),
        (lambda lines: [*lines[:1], b'{"seq":1,"ts_ns":1}\n'], "inputs.jsonl:2: need "),
    ],
)
def test_damaged_inputs_are_named(tmp_path, spoil, error):
    record(tmp_path / "run", SCRIPT)
    trace = exported(tmp_path)
    path = trace.path / "inputs.jsonl"
    path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(TraceError, match=error):
        list(recorded_inputs(trace))


def test_a_bundle_that_came_from_elsewhere_has_no_inputs(tmp_path):
    record(tmp_path / "run", SCRIPT)
    trace = exported(tmp_path)
    (trace.path / "inputs.jsonl").unlink()
    with pytest.raises(TraceError, match="made by torchloom trace from-trajectory"):
        recorded_incarnation(trace)
