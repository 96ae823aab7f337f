"""Every message survives a round trip; everything else is a MessageError."""

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.inputs import acks, batches, exits, hellos, notes
from tests.recorded_message import recorded
from torchloom_core.floor.errors import MessageError
from torchloom_core.wire import codec, limits
from torchloom_core.wire.commands import Command
from torchloom_core.wire.links import MAX_PROBE_BYTES, MIN_PROBE_BYTES, ProbeAddress
from torchloom_core.wire.messages import (
    Hello,
    JoinReply,
    JoinRequest,
    Note,
    PauseState,
    RollCall,
    Telemetry,
)
from torchloom_core.wire.operations import (
    Cut,
    FencedChange,
    Operation,
    Probe,
    Rewind,
    SetKnob,
    SetKnobs,
    StartRole,
    Withdraw,
)

int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**53)
stamps = st.integers(0, 2**63 - 1)
names = st.from_regex(limits.NAME)
ids = st.from_regex(r"\A[A-Za-z0-9_.:-]{1,64}\Z")
knobs = st.from_regex(r"\A[a-z]{1,9}(\.[A-Za-z0-9_-]{1,9}){0,3}\Z")
values = st.one_of(
    st.booleans(),
    int64,
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=256),
)
probe_addresses = st.builds(
    ProbeAddress,
    host=st.from_regex(r"\A[A-Za-z0-9._:%-]{1,40}\Z"),
    port=st.integers(1, 65_535),
    token=st.binary(min_size=32, max_size=32).map(bytes.hex),
)
_WITH_FIELDS = (SetKnob, SetKnobs, Rewind, Probe, Cut, FencedChange, StartRole, Withdraw)
fenced = st.one_of(
    st.builds(SetKnobs, values=st.dictionaries(knobs, values, max_size=3)),
    st.builds(Rewind, skip=counts),
)
operations = st.one_of(
    fenced,
    st.builds(SetKnob, knob=knobs, value=values),
    st.builds(
        Probe,
        receiver=names,
        probe_address=probe_addresses,
        probe_bytes=st.integers(MIN_PROBE_BYTES, MAX_PROBE_BYTES),
    ),
    st.builds(Cut, quorum_id=counts),
    st.builds(StartRole, role=names),
    st.builds(
        FencedChange,
        number=int64,
        do=fenced,
        groups=st.lists(names, max_size=2).map(tuple),
    ),
    st.builds(Withdraw, number=int64),
    *(
        st.builds(operation)
        for operation in Operation.__subclasses__()
        if operation not in _WITH_FIELDS
    ),
)
commands = st.builds(
    Command,
    id=ids,
    run=names,
    worker=names,
    incarnation=counts,
    epoch=counts,
    issued_ns=stamps,
    deadline_ns=stamps,
    do=operations,
    cause=st.text(max_size=256),
)
telemetry = batches(names)
ids_of_workers = {"run": names, "worker": names, "incarnation": counts}


def decoder_of(cls):
    return lambda data: codec.decode_json(cls, data, cls.__name__)


WIRES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "telemetry": (telemetry, codec.encode_telemetry, codec.decode_telemetry),
    "event": (st.one_of(hellos, exits, notes), codec.encode, codec.decode_event),
    "command": (commands, codec.encode, codec.decode_command),
    "ack": (acks, codec.encode, codec.decode_ack),
    **{
        messages.__name__: (st.builds(messages, **fields), codec.encode, decoder_of(messages))
        for messages, fields in (
            (RollCall, {"run": names, "epoch": counts}),
            (PauseState, {"run": names, "epoch": counts, "verdict": names, "over": names}),
            (JoinRequest, {**ids_of_workers, "public_key": st.text(max_size=256), "node": names}),
            (JoinReply, {"jwt": st.text(), "error": st.text(), "unwanted": st.booleans()}),
        )
    },
}

each = pytest.mark.parametrize("name", WIRES)


@each
@settings(max_examples=examples(50))
@given(data=st.data())
def test_a_message_survives_a_round_trip(name, data):
    messages, encode, decode = WIRES[name]
    message = data.draw(messages)
    assert decode(encode(message)) == message


@each
@settings(max_examples=30)
@given(data=st.data())
def test_fields_of_a_newer_writer_are_ignored(name, data):
    messages, encode, decode = WIRES[name]
    message = data.draw(messages)
    wire = msgspec.msgpack if name == "telemetry" else msgspec.json
    body = wire.decode(encode(message))
    body.update({"v": 2, "of_tomorrow": {"deep": [1, None]}})
    assert decode(wire.encode(body)) == msgspec.structs.replace(message, v=2)


@each
@given(data=st.data())
def test_a_truncated_message_is_no_message(name, data):
    messages, encode, decode = WIRES[name]
    whole = encode(data.draw(messages))
    with pytest.raises(MessageError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@each
@given(noise=st.binary(max_size=200))
@example(noise=b"[" * 100_000)
@example(noise=b"\x91" * 100_000)
@example(noise=b'{"type":"' + b"\xff" * 10)
@example(noise=b"\xdd\xff\xff\xff\xff")
@example(noise=b"\xc6\xff\xff\xff\xff")
def test_noise_is_a_message_error_and_nothing_else(name, noise):
    assume(noise.translate(None, b" \t\r\n") not in (b"{}", b"\x80"))  # a message of defaults
    with pytest.raises(MessageError, match=name.replace("_", " ")):
        WIRES[name][2](noise)


@each
@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_message_with_a_few_bytes_changed_is_a_message_or_a_message_error(name, data):
    messages, encode, decode = WIRES[name]
    body = bytearray(encode(data.draw(messages)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MessageError):
        decode(bytes(body))


@each
def test_an_oversized_message_is_refused_unread(name):
    with pytest.raises(MessageError, match=r"need at most 1048576 bytes, was 1048577"):
        WIRES[name][2](b" " * (codec.MAX_MESSAGE_BYTES + 1))


def batch(**changes: Any) -> Telemetry:
    fields: dict[str, Any] = {
        "run": "run",
        "worker": "a-0",
        "incarnation": 1,
        "seq": 0,
        "state": "training",
        "step": 1,
        "progress_age_s": 0.0,
    }
    return Telemetry(**{**fields, **changes})


@pytest.mark.parametrize(
    ("times", "metrics", "numbers"),
    [
        (7, ("m",), 0),
        (8, ("m",), 0),
        (8, ("m",), 16),
        (8, (), 8),
        (7, ("m",), 8),
        (0, ("m",), 8),
        (16, ("m",), 8),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(times, metrics, numbers):
    data = codec.encode_telemetry(batch(ts_ns=bytes(times), metrics=metrics, values=bytes(numbers)))
    for decode in (codec.decode_telemetry, codec.decode_newest):
        with pytest.raises(MessageError, match=r"telemetry of a-0: need values of .* bytes, was"):
            decode(data)


@given(telemetry)
def test_the_newest_sample_alone_is_the_last_of_the_batch(sent):
    data = codec.encode_telemetry(sent)
    newest = codec.decode_newest(memoryview(data))
    size = 8 * len(sent.metrics) if sent.ts_ns else 0
    values = sent.values[len(sent.values) - size :]
    assert newest == msgspec.structs.replace(sent, ts_ns=sent.ts_ns[-8:], values=values)


def test_what_is_no_telemetry_has_no_newest_sample_either():
    data = codec.encode_telemetry(batch())
    for damaged in (b"", data[:-1], data + b"\0", codec.encode(batch())):
        with pytest.raises(MessageError, match="telemetry"):
            codec.decode_newest(damaged)


@pytest.mark.parametrize("age_s", [math.nan, math.inf, -math.inf, 1e300])
def test_an_age_that_is_no_time_is_refused(age_s):
    with pytest.raises(MessageError):
        codec.decode_telemetry(codec.encode_telemetry(batch(progress_age_s=age_s)))


@pytest.mark.parametrize("field", ["step", "seq", "incarnation", "dropped", "v"])
@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, -2])
def test_a_number_that_fits_no_column_is_refused(field, number):
    body = msgspec.msgpack.decode(codec.encode_telemetry(batch()))
    if number >= 2**64 or number < -(2**63):
        data = msgspec.msgpack.encode(body | {field: float(number)})
    else:
        data = msgspec.msgpack.encode(body | {field: number})
    with pytest.raises(MessageError):
        codec.decode_telemetry(data)


def test_decoded_telemetry_can_be_recorded(tmp_path):
    """A number that Arrow does not accept would never be sealed."""
    for field in ("step", "seq", "incarnation", "dropped", "v"):
        for number in (0, 65_535, 2**53):
            with suppress(MessageError):
                data = codec.encode_telemetry(batch(**{field: number}))
                sent = codec.decode_telemetry(data)
                assert recorded(data) == [sent]


BAD_NAMES = ["", "a b", "a.b", "a*", "a>", "a\n", "é", "a" * 65, "a\x00", "/a"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("field", ["run", "worker"])
def test_a_sender_whose_name_is_no_token_is_refused_each_time(field, name):
    data = codec.encode_telemetry(batch(**{field: name}))
    for _ in range(2):
        with pytest.raises(MessageError, match=field):
            codec.decode_telemetry(data)


@pytest.mark.parametrize("name", ["", "a b", "7up", "a/b", "a\n", "é", "a" * 129, "a\x1b"])
def test_a_metric_whose_name_could_not_be_written_down_is_refused_each_time(name):
    data = codec.encode_telemetry(batch(metrics=("loss", name)))
    for _ in range(2):
        with pytest.raises(MessageError, match="metrics"):
            codec.decode_telemetry(data)


def test_too_many_metrics_are_refused():
    names = tuple(f"m{n}" for n in range(1025))
    codec.decode_telemetry(codec.encode_telemetry(batch(metrics=names[:1024])))
    with pytest.raises(MessageError, match="metrics"):
        codec.decode_telemetry(codec.encode_telemetry(batch(metrics=names)))


def hello(**changes: Any) -> dict[str, Any]:
    whole = Hello(run="run", worker="a-0", incarnation=1, group="a", rank=0, node="n")
    return {**msgspec.to_builtins(whole), **changes}


@pytest.mark.parametrize("name", BAD_NAMES[1:])
@pytest.mark.parametrize("field", ["run", "worker", "group", "node", "rack"])
def test_a_hello_with_a_name_that_is_no_token_is_refused(field, name):
    with pytest.raises(MessageError, match=field):
        codec.decode_event(msgspec.json.encode(hello(**{field: name})))


def knob(**changes: Any) -> dict[str, Any]:
    return {"knobs": [{"name": "lr", "kind": "float", **changes}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": 2**53 + 1},
        {"incarnation": -1},
        {"rank": -1},
        {"rank": 2**31},
        {"pid": -1},
        {"ts_ns": -1},
        {"ts_ns": 2**63},
        {"v": 65_536},
        {"v": -1},
        {"host": "h" * 257},
        {"framework": "f" * 257},
        {"actuators": ["a b"]},
        {"actuators": ["a"] * 65},
        knob(name="a b"),
        knob(name=".a"),
        knob(name="a..b"),
        knob(name="a" * 65),
        knob(name="a\n"),
        knob(choices=["c"] * 257),
        knob(choices=["c" * 257]),
        knob(doc="d" * 2001),
        {"knobs": knob()["knobs"] * 257},
        {"values": {"a b": 1}},
        {"values": {"lr": None}},
        {"values": {"lr": 2**63}},
        {"values": {"lr": "v" * 4097}},
        {"values": {f"k{n}": n for n in range(257)}},
    ],
)
def test_a_hello_beyond_a_limit_is_refused(changes):
    codec.decode_event(msgspec.json.encode(hello()))
    with pytest.raises(MessageError):
        codec.decode_event(msgspec.json.encode(hello(**changes)))


def test_stacks_fit_a_note_and_a_library_does_not():
    note = msgspec.to_builtins(
        Note(run="run", worker="a-0", incarnation=1, kind="dump", fields={"stacks": "s" * 500_000})
    )
    codec.decode_event(msgspec.json.encode(note))
    for fields in ({"stacks": "s" * 500_001}, {f"f{n}": n for n in range(65)}, {"a b": 1}):
        with pytest.raises(MessageError):
            codec.decode_event(msgspec.json.encode({**note, "fields": fields}))


def test_nan_in_the_values_comes_through():
    data = struct.pack("<2d", math.nan, math.inf)
    sent = batch(ts_ns=bytes(8), metrics=("a", "b"), values=data)
    assert codec.decode_telemetry(codec.encode_telemetry(sent)).values == data
