"""The kernel's inputs in a bundle that came from a trajectory, exactly as the kernel had them."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.errors import MessageError, TraceError
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import INPUTS
from torchloom_core.wire.codec import UNREADABLE, decode_telemetry, encode_telemetry
from torchloom_core.wire.events import Input, RecordingGap
from torchloom_core.wire.limits import Int64
from torchloom_core.wire.messages import Telemetry


class LifeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of ``inputs.jsonl``: which life of which Weaver this was.

    Attributes
    ----------
    config : dict
        The whole config of that life.
    overruns : tuple of (seq, policy, detail)
        Policies that took too long, the one thing that no replay can repeat.
    """

    run: str
    epoch: int
    config: dict[str, Any]
    plugins: dict[str, str] = {}
    overruns: tuple[tuple[int, str, str], ...] = ()


class InputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every other line: one input, and when it came.

    ``telemetry`` is a batch as msgpack, which keeps every bit, as base64; ``body`` any other
    message.
    """

    seq: Int64
    ts_ns: Int64
    telemetry: str = ""
    body: Input | None = None


class RecordedLife(NamedTuple):
    """What a kernel needs beside its inputs to decide as it did."""

    config: Config
    overruns: list[tuple[int, str, str]]


_life = msgspec.json.Decoder(LifeLine)
_input = msgspec.json.Decoder(InputLine)


def input_line(seq: int, ts_ns: int, message: Telemetry | Input) -> InputLine:
    """Return the line of one input."""
    if isinstance(message, Telemetry):
        packed = base64.b64encode(encode_telemetry(message)).decode()
        return InputLine(seq=seq, ts_ns=ts_ns, telemetry=packed)
    return InputLine(seq=seq, ts_ns=ts_ns, body=message)


def recorded_life(bundle: Bundle) -> RecordedLife:
    """Return how the kernel was configured.

    Raises
    ------
    TraceError
        If the bundle did not come from a trajectory, or this version does not know its config.
    """
    lines = _lines(bundle)
    place, line = next(lines)
    try:
        life = _life.decode(line)
        return RecordedLife(msgspec.convert(life.config, Config), list(life.overruns))
    except UNREADABLE as error:
        raise TraceError(f"{place}: {error}") from None


def recorded_inputs(bundle: Bundle) -> Iterator[tuple[int, Telemetry | Input]]:
    """Yield ``(ts_ns, message)`` of every input, in the order in which the kernel had it.

    Raises
    ------
    TraceError
        If the bundle did not come from a trajectory, or a line is damaged or missing.
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
            f"{path}: need a bundle made by torchloom trace from-trajectory, there is none"
        ) from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
