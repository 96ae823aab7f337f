"""Read the kernel's inputs from a bundle made from a trajectory, bit for bit."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import MessageError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import INPUTS
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.codec import UNREADABLE, decode_telemetry, encode_telemetry
from torchloom_core.wire.events import Input, RecordingGap
from torchloom_core.wire.limits import Int64
from torchloom_core.wire.messages import Telemetry


class IncarnationLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of ``inputs.jsonl``: the incarnation of the Weaver.

    Attributes
    ----------
    config : dict
        The whole config of that incarnation.
    overruns : tuple of (seq, policy, detail)
        Policies that exceeded their time limit, which a replay cannot reproduce.
    """

    run: str
    epoch: int
    config: dict[str, Any]
    plugins: dict[str, str] = {}
    overruns: tuple[tuple[int, str, str], ...] = ()


class InputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every other line: one input, and its time.

    ``telemetry`` is a batch as base64 of msgpack, which is exact; ``body`` any other message.
    """

    seq: Int64
    ts_ns: Int64
    telemetry: str = ""
    body: Input | None = None


class RecordedIncarnation(NamedTuple):
    """What a replay needs beside the inputs: the config and the overruns."""

    config: Config
    overruns: list[tuple[int, str, str]]


_first = msgspec.json.Decoder(IncarnationLine)
_input = json_decoder(InputLine)


def input_line(seq: int, ts_ns: int, message: Telemetry | Input) -> InputLine:
    """Return the line of one input."""
    if isinstance(message, Telemetry):
        packed = base64.b64encode(encode_telemetry(message)).decode()
        return InputLine(seq=seq, ts_ns=ts_ns, telemetry=packed)
    return InputLine(seq=seq, ts_ns=ts_ns, body=message)


def recorded_incarnation(bundle: Bundle) -> RecordedIncarnation:
    """Return the config and the overruns of a bundle's incarnation.

    Raises
    ------
    TraceError
        If the bundle was not made from a trajectory, or its config is invalid in this version.
    """
    lines = _lines(bundle)
    place, line = next(lines)
    try:
        incarnation = _first.decode(line)
        return RecordedIncarnation(
            msgspec.convert(incarnation.config, Config), list(incarnation.overruns)
        )
    except UNREADABLE as error:
        raise TraceError(f"{place}: {error}") from None


def recorded_inputs(bundle: Bundle) -> Iterator[tuple[int, Telemetry | Input]]:
    """Yield ``(ts_ns, message)`` of every input, in the kernel's order.

    Raises
    ------
    TraceError
        If the bundle was not made from a trajectory, or a line is damaged or missing.
    """
    lines = _lines(bundle)
    next(lines)
    number = 1
    for place, text in lines:
        try:
            line = _input.decode(text)
            packed = base64.b64decode(line.telemetry, validate=True)
            message = decode_telemetry(packed) if packed else line.body
        except (*UNREADABLE, MessageError, binascii.Error) as error:
            raise TraceError(f"{place}: {error}") from None
        if isinstance(message, RecordingGap) and message.first == number:
            number = line.seq
        if line.seq != number or message is None:
            raise TraceError(f"{place}: need input {number}, was {line.seq}")
        yield line.ts_ns, message
        number += 1


def _lines(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    path = bundle.path / INPUTS
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield f"{path}:{number}", line
    except FileNotFoundError:
        raise TraceError(
            f"{path}: need a bundle made by torchloom trace from-trajectory, was another"
        ) from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
