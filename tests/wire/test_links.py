"""Messages about links: pairs, bytes of a probe, and measurements."""

import math

import msgspec
import pytest

from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.codec import decode_ack, decode_command, decode_event, encode
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.links import (
    MAX_PAIRS,
    MAX_PROBE_BYTES,
    MIN_PROBE_BYTES,
    Measured,
    ProbeAddress,
)
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Probe

PROBE_TOKEN = "0123456789abcdef" * 4
PROBE_ADDRESS = ProbeAddress(host="10.0.0.3", port=4000, token=PROBE_TOKEN)
WHO = {"run": "run", "worker": "g0-0", "incarnation": 1}


def decoded(**fields) -> ProbeLinks:
    return msgspec.json.decode(msgspec.json.encode({"kind": "probe", **fields}), type=ProbeLinks)


def many(count):
    return [[f"s{number}", f"r{number}"] for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, MAX_PAIRS])
def test_pairs_without_a_shared_worker_are_valid(count):
    assert len(decoded(pairs=many(count)).pairs) == count


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        many(MAX_PAIRS + 1),
        [["a", "a"]],
        [["a", "b"], ["b", "c"]],
        [["a", "b"], ["a", "c"]],
        [["a", "b"], ["a", "b"]],
        [["a", "b"], ["c", "b"]],
        [["a"]],
        [["a", "b", "c"]],
        [["a", ""]],
        [["a", "x" * 257]],
        [["a", 1]],
    ],
)
def test_other_pairs_are_refused(pairs):
    with pytest.raises(msgspec.ValidationError):
        decoded(pairs=pairs)


def test_a_worker_in_two_pairs_is_an_error_at_once():
    with pytest.raises(ValueError, match="need each worker once, was b twice"):
        ProbeLinks(pairs=(("a", "b"), ("b", "c")))


@pytest.mark.parametrize("probe_bytes", [MIN_PROBE_BYTES, MAX_PROBE_BYTES])
def test_a_probe_sends_within_its_limits(probe_bytes):
    assert decoded(pairs=many(1), probe_bytes=probe_bytes).probe_bytes == probe_bytes


@pytest.mark.parametrize(
    "probe_bytes", [MIN_PROBE_BYTES - 1, MAX_PROBE_BYTES + 1, 0, -1, 1e6 + 0.5, "1", None]
)
def test_a_probe_beyond_its_limits_is_refused(probe_bytes):
    with pytest.raises(msgspec.ValidationError):
        decoded(pairs=many(1), probe_bytes=probe_bytes)


def test_hello_command_and_ack_have_the_data_of_a_probe():
    hello = Hello(**WHO, group="g0", rank=0, node="n0", probe_address=PROBE_ADDRESS)
    assert decode_event(encode(hello)) == hello
    operation = Probe(receiver="g1-0", probe_address=PROBE_ADDRESS, probe_bytes=1 << 20)
    command = Command(**WHO, id="c1", epoch=1, issued_ns=0, deadline_ns=1, do=operation)
    assert decode_command(encode(command)) == command
    measured = Measured(bytes_per_s=1e6, latency_s=0.0)
    ack = Ack(**WHO, command="c1", epoch=1, status="applied", measured=measured)
    assert decode_ack(encode(ack)) == ack


@pytest.mark.parametrize(
    "probe_address",
    [
        {"host": ""},
        {"host": "a b"},
        {"host": "a\n"},
        {"host": "x" * 254},
        {"port": 0},
        {"port": 65_536},
        {"token": PROBE_TOKEN[:-1]},
        {"token": PROBE_TOKEN[:-1] + "G"},
        {"token": PROBE_TOKEN + "\n"},
    ],
)
def test_an_invalid_probe_address_is_refused(probe_address):
    plain = {"host": "h", "port": 1, "token": PROBE_TOKEN, **probe_address}
    hello = Hello(**WHO, group="g0", rank=0, node="n0")
    data = msgspec.json.encode({**msgspec.to_builtins(hello), "probe_address": plain})
    with pytest.raises(MessageError):
        decode_event(data)


@pytest.mark.parametrize(
    "measured",
    [
        {"bytes_per_s": 0},
        {"bytes_per_s": -1.0},
        {"bytes_per_s": 1e16},
        {"latency_s": -1e-9},
        {"latency_s": 3601},
        {"spread": -0.1},
        {"bytes_per_s": math.nan},
        {"latency_s": None},
    ],
)
def test_an_invalid_measurement_is_refused(measured):
    plain = {"bytes_per_s": 1e6, "latency_s": 0.1, "spread": 0.1, **measured}
    ack = msgspec.to_builtins(Ack(**WHO, command="c1", epoch=1, status="applied"))
    with pytest.raises(MessageError):
        decode_ack(msgspec.json.encode({**ack, "measured": plain}))
