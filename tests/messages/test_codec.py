"""Every message survives the wire; everything else ends in one MessageError."""

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernel.inputs import acks, batches, exits, hellos, notes
from torchloom_core import codec
from torchloom_core.errors import MessageError
from torchloom_core.messages import (
    Command,
    Deed,
    JoinReply,
    JoinRequest,
    RollCall,
    SetKnob,
    Telemetry,
)

int64 = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(
    st.booleans(), int64, st.floats(allow_nan=False, allow_infinity=False), st.text()
)
deeds = st.one_of(
    st.builds(SetKnob, knob=st.text(), value=values),
    *(st.builds(deed) for deed in get_args(Deed) if deed is not SetKnob),
)
commands = st.builds(
    Command,
    id=st.text(),
    run=st.text(),
    worker=st.text(),
    incarnation=int64,
    epoch=int64,
    issued_ns=int64,
    deadline_ns=int64,
    do=deeds,
    cause=st.text(),
)
telemetry = batches(st.text())

WIRES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "telemetry": (telemetry, codec.encode_telemetry, codec.decode_telemetry),
    "event": (st.one_of(hellos, exits, notes), codec.encode, codec.decode_event),
    "command": (commands, codec.encode, codec.decode_command),
    "ack": (acks, codec.encode, codec.decode_ack),
    "roll_call": (
        st.builds(RollCall, run=st.text(), epoch=int64),
        codec.encode,
        codec.decode_roll_call,
    ),
    "join_request": (
        st.builds(
            JoinRequest,
            run=st.text(),
            worker=st.text(),
            incarnation=int64,
            public_key=st.text(),
        ),
        codec.encode,
        codec.decode_join_request,
    ),
    "join_reply": (
        st.builds(JoinReply, jwt=st.text(), error=st.text()),
        codec.encode,
        codec.decode_join_reply,
    ),
}

each = pytest.mark.parametrize("name", WIRES)


@each
@settings(max_examples=50)
@given(data=st.data())
def test_a_message_comes_back_as_it_went(name, data):
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
    with pytest.raises(MessageError, match=name.replace("_", " ")):
        WIRES[name][2](noise)


@each
@settings(max_examples=60)
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
    with pytest.raises(MessageError, match=r"telemetry of a-0: need values of .* bytes, was"):
        codec.decode_telemetry(data)


@pytest.mark.parametrize("age_s", [math.nan, math.inf, -math.inf, 1e300])
def test_an_age_that_is_no_time_is_refused(age_s):
    with pytest.raises(MessageError):
        codec.decode_telemetry(codec.encode_telemetry(batch(progress_age_s=age_s)))


@pytest.mark.parametrize("field", ["step", "seq", "incarnation", "dropped"])
def test_a_number_that_fits_no_column_is_refused(field):
    with pytest.raises(MessageError):
        codec.decode_telemetry(codec.encode_telemetry(batch(**{field: 2**63})))


def test_nan_in_the_values_comes_through():
    data = struct.pack("<2d", math.nan, math.inf)
    sent = batch(ts_ns=bytes(8), metrics=("a", "b"), values=data)
    assert codec.decode_telemetry(codec.encode_telemetry(sent)).values == data
