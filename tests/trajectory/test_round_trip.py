"""The reader returns what was written, bit for bit and in order."""

import functools
import math
import operator
import tempfile
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.layout import part_paths, run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.sealing import Sealer
from torchloom_core.live.trajectory.writer import BUFFER_BYTES, TrajectoryWriter
from torchloom_core.wire.actions import Action
from torchloom_core.wire.capabilities import action_type, installed
from torchloom_core.wire.codec import encode, encode_telemetry
from torchloom_core.wire.decisions import Output, PolicyFailed
from torchloom_core.wire.events import Input, Tick
from torchloom_core.wire.messages import Telemetry
from torchloom_core.wire.operations import FencedChange, Operation
from torchloom_core.wire.preview import MOST_REPEATS, MOST_STEPS, PreviewRequest

pytestmark = pytest.mark.slow

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=8)
PROBES = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=6, unique=True).map(
    lambda named: ProbeLinks(pairs=tuple(zip(named[::2], named[1::2], strict=False)))
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Every value a message's field can have on the wire."""
    simple = {int: INT64, float: FLOAT, str: TEXT, bool: st.booleans(), type(None): st.none()}
    simple[bytes] = st.binary(max_size=8)
    simple[msgspec.UnsetType] = st.just(msgspec.UNSET)
    if kind in simple:
        return simple[kind]
    if kind is Action:
        return st.one_of([values_of(action_type(name)) for name in installed()])
    if kind is Operation:
        return st.one_of([values_of(one) for one in Operation.__subclasses__()])
    if kind is ProbeLinks:
        return PROBES
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        if kind is FencedChange:
            others = (one for one in Operation.__subclasses__() if one is not FencedChange)
            hints["do"] = functools.reduce(operator.or_, others)
        fields = {name: values_of(hints[name]) for name in kind.__struct_fields__}
        if issubclass(kind, PreviewRequest):
            fields["steps"] = st.integers(0, MOST_STEPS // MOST_REPEATS)
        return st.builds(kind, **fields)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated and get_origin(args[0]) is dict:
        least = max(meta.min_length or 0 for meta in args[1:])
        return st.dictionaries(*map(values_of, get_args(args[0])), min_size=least, max_size=2)
    if origin is Annotated and get_args(args[0])[-1:] == (Ellipsis,):
        least = max(meta.min_length or 0 for meta in args[1:])
        return st.lists(values_of(get_args(args[0])[0]), min_size=least, max_size=2).map(tuple)
    if origin is Annotated:
        return limited(args[0], args[1])
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(arg) for arg in args])
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=2)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    assert origin is tuple, kind
    return st.tuples(*map(values_of, args))


def limited(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Every value within a field's limits."""
    if kind is int:
        return st.integers(meta.ge, meta.le)
    if kind is float:
        low = meta.ge if meta.gt is None else meta.gt
        return st.floats(low, meta.le, exclude_min=meta.gt is not None)
    if kind is str and meta.pattern:
        return st.from_regex(meta.pattern).filter(lambda x: len(x) <= (meta.max_length or 999))
    if kind is str:
        return st.text(min_size=meta.min_length or 0, max_size=8)
    return values_of(kind)


@st.composite
def batches(draw: st.DrawFn) -> Telemetry:
    batch = draw(values_of(Telemetry))
    times, size = draw(st.lists(INT64, max_size=3)), 8 * len(batch.metrics)
    values = draw(st.binary(min_size=size * len(times), max_size=size * len(times)))
    return msgspec.structs.replace(batch, ts_ns=np.array(times, "<i8").tobytes(), values=values)


INPUTS = get_args(Input)
OUTPUTS = get_args(Output)
event_strategy = st.one_of([values_of(kind) for kind in INPUTS])
output_strategy = st.one_of([values_of(kind) for kind in OUTPUTS])
EVENTS = st.tuples(event_strategy, st.lists(output_strategy, max_size=3))
RECORDS = st.lists(
    st.tuples(st.one_of(EVENTS, batches()), INT64, st.booleans()), min_size=1, max_size=12
)


def write(writer: TrajectoryWriter, message: Any, ts_ns: int) -> tuple[Any, tuple[bytes, ...]]:
    if isinstance(message, Telemetry):
        writer.telemetry(encode_telemetry(message), ts_ns)
        return message, ()
    event, outputs = message
    writer.event(event, ts_ns, outputs)
    return event, tuple(encode(output) for output in outputs)


def bits(message: Any) -> bytes:
    """A key that distinguishes even 0.0 from -0.0."""
    return encode_telemetry(message) if isinstance(message, Telemetry) else encode(message)


def a_batch(number: int, worker: str = "g0-0", metrics: tuple[str, ...] = ("loss",)) -> Telemetry:
    return Telemetry(
        run="demo",
        worker=worker,
        incarnation=1,
        seq=number,
        state="training",
        step=number,
        progress_age_s=0.5,
        metrics=metrics,
        ts_ns=np.array([number, number + 1], "<i8").tobytes(),
        values=np.arange(2 * len(metrics), dtype="<f8").tobytes(),
    )


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(150))
@given(records=RECORDS, part_bytes=st.sampled_from([1, 2000, 1 << 20]))
def test_everything_is_read_back_bit_for_bit_and_in_order(records: Any, part_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        writer = TrajectoryWriter(root, "demo", 1, Config(), {}, 5, part_bytes=part_bytes)
        given_in = []
        for seq, (record, ts_ns, flush) in enumerate(records, start=1):
            message, outputs = write(writer, record, ts_ns)
            given_in.append((seq, ts_ns, message, outputs))
            if flush:
                writer.flush()
        writer.close()
        read = [tuple(recorded) for recorded in read_epochs(root)[0].inputs()]
    assert read == given_in
    assert [bits(record[2]) for record in read] == [bits(record[2]) for record in given_in]


@pytest.mark.parametrize("kind", [*INPUTS, *OUTPUTS], ids=lambda kind: kind.__name__)
def test_every_kind_of_message_has_a_line_of_its_own(kind: Any, tmp_path: Path) -> None:
    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=10)
    @given(message=values_of(kind))
    def round_trip(message: Any) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            root = Path(folder)
            writer = TrajectoryWriter(root, "demo", 1, Config(), {}, 5)
            pair = (message, []) if kind in INPUTS else (Tick(), [message])
            event, outputs = write(writer, pair, 7)
            writer.close()
            epoch_record = read_epochs(root)[0]
            assert [tuple(recorded) for recorded in epoch_record.inputs()] == [
                (1, 7, event, outputs)
            ]
            line = list(epoch_record.lines())[-1]
            assert line.kind == kind.__struct_config__.tag
            assert line.io == ("in" if kind in INPUTS else "out")

    round_trip()


def test_a_nan_keeps_its_payload(tmp_path: Path) -> None:
    strange = bytes.fromhex("efbeadde0000f87f")
    assert math.isnan(np.frombuffer(strange, "<f8")[0])
    batch = msgspec.structs.replace(a_batch(1), values=strange * 2)
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    writer.telemetry(encode_telemetry(batch), 1)
    writer.close()
    assert [r.message for r in read_epochs(tmp_path)[0].inputs()] == [batch]


def test_large_files_go_on_in_a_new_part_that_reads_alone(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5, part_bytes=2000)
    for number in range(1, 60, 2):
        batch = a_batch(number, f"g{number % 7}-0", (f"m{number % 5}", "loss"))
        writer.telemetry(encode_telemetry(batch), number)
        writer.event(Tick(), number, ())
        writer.flush()
    writer.close()
    epoch_record = read_epochs(tmp_path)[0]
    assert len(part_paths(epoch_record.folder, "events")) > 1
    assert len(part_paths(epoch_record.folder, "telemetry")) > 1
    assert [recorded.seq for recorded in epoch_record.inputs()] == list(range(1, 61))


def test_without_a_flush_the_buffer_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sealer, "add", lambda sealer, part: None)
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    large = msgspec.structs.replace(
        a_batch(1, metrics=("m",)), ts_ns=bytes(1 << 20), values=bytes(1 << 20)
    )
    for _ in range((BUFFER_BYTES >> 20) + 1):
        writer.telemetry(encode_telemetry(large), 1)
    assert part_paths(writer.folder, "telemetry")
    writer.close()


def test_meta_has_the_run_and_epoch_and_no_password(tmp_path: Path) -> None:
    config = parse(
        '[broker]\nurl = "nats://me:secret@host:4222"\n[policies.straggler]\nratio = 2.0\n'
        '[effectors.webhook]\nmode = "act"\nurl = "https://hooks.example/secret"'
    )
    root = run_folder(tmp_path, "demo")
    TrajectoryWriter(root, "demo", 7, config, {"straggler": "0.1.0"}, 5).close()
    (epoch_record,) = read_epochs(root)
    assert epoch_record.folder == tmp_path / "trajectory" / "demo" / "epoch-000007"
    assert (epoch_record.meta.run, epoch_record.meta.epoch, epoch_record.meta.started_ns) == (
        "demo",
        7,
        5,
    )
    assert epoch_record.meta.plugins == {"straggler": "0.1.0"}
    assert epoch_record.config.policies == {"straggler": {"ratio": 2.0}}
    assert epoch_record.config.effectors == {"webhook": {"mode": "act"}}
    assert epoch_record.config.broker.url == "nats://host:4222"
    assert "secret" not in (epoch_record.folder / "meta.json").read_text()


def test_epochs_are_read_in_their_order(tmp_path: Path) -> None:
    for epoch in (2, 10, 1):
        TrajectoryWriter(tmp_path, "demo", epoch, Config(), {}, 5).close()
    assert [epoch_record.meta.epoch for epoch_record in read_epochs(tmp_path)] == [1, 2, 10]


def test_an_epoch_is_written_once(tmp_path: Path) -> None:
    TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5).close()
    with pytest.raises(StateError, match="epoch-000001: need a new epoch, was 1 again"):
        TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)


def test_overruns_are_listed_for_the_replay(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "demo", 1, Config(), {}, 5)
    writer.telemetry(encode_telemetry(a_batch(1)), 1)
    raised = PolicyFailed(policy="b", rule="raised", detail="no")
    slow = PolicyFailed(policy="a", rule="overran", detail="took more than 0.5 s")
    writer.event(Tick(), 2, [raised, slow])
    writer.close()
    assert read_epochs(tmp_path)[0].overruns() == [(2, "a", "took more than 0.5 s")]
