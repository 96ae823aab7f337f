"""Encode and decode messages; every malformed message raises a MessageError."""

from typing import Any, TypeVar

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.messages import Telemetry, WorkerEvent
from torchloom_core.wire.wording import in_words

MAX_MESSAGE_BYTES = 1 << 20
"""The server's default ``max_payload``; a larger message never arrives."""

MAX_REPORT_BYTES = 1 << 15
"""Of an ack or an event on ``tl.evt``; a larger event is sent on ``tl.bulk``."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that are no message."""

_INT64 = 8
_FLOAT64 = 8
_CACHED_HEADERS = 1000
_LONGEST_CACHED_HEADER = 1 << 15
"""Bytes, enough for 1,000 names of 30 characters; longer headers are not cached."""

_CACHED_SENDERS = 100_000

_T = TypeVar("_T")
Bytes = bytes | memoryview


class _Unnamed(Telemetry, frozen=True, kw_only=True):
    """Telemetry whose metric names are still msgpack, and whose sender's names are unchecked."""

    run: str
    worker: str
    metrics: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


class _InPlace(_Unnamed, frozen=True, kw_only=True):
    """The same with its arrays in the message, not copied."""

    ts_ns: memoryview = memoryview(b"")  # type: ignore[assignment]
    values: memoryview = memoryview(b"")  # type: ignore[assignment]


_Batch = TypeVar("_Batch", bound=_Unnamed)

_telemetry_encoder = msgspec.msgpack.Encoder()
_telemetry_decoder = msgspec.msgpack.Decoder(Telemetry)
_unnamed_decoder = msgspec.msgpack.Decoder(_Unnamed)
_in_place_decoder = msgspec.msgpack.Decoder(_InPlace)
_names_of: dict[bytes, tuple[str, ...]] = {}
"""Metric names by their msgpack: a worker sends the same ones with every batch."""
_run_of: dict[str, str] = {}
"""Senders whose names were checked, and their runs."""
_json_encoder = msgspec.json.Encoder()
_event_decoder: msgspec.json.Decoder[WorkerEvent] = msgspec.json.Decoder(WorkerEvent)
_command_decoder: msgspec.json.Decoder[Command] = json_decoder(Command)
_ack_decoder = msgspec.json.Decoder(Ack)


def encode(message: msgspec.Struct | dict[str, Any]) -> bytes:
    """Return a message as JSON, readable with ``nats sub``."""
    return _json_encoder.encode(message)


def encode_telemetry(batch: Telemetry) -> bytes:
    """Return a telemetry batch as msgpack."""
    return _telemetry_encoder.encode(batch)


def decode_telemetry(data: Bytes) -> Telemetry:
    """Return the batch in ``data``.

    Raises
    ------
    MessageError
        If ``data`` is no telemetry, too large, or its arrays have different lengths.
    """
    batch, names, _ = _decoded(data, _unnamed_decoder)
    return _named(batch, names, batch.ts_ns, batch.values)


def decode_newest(data: Bytes) -> Telemetry:
    """Return the batch in ``data`` with its newest sample alone.

    Raises
    ------
    MessageError
        If ``data`` is no telemetry, too large, or its arrays have different lengths.
    """
    batch, names, samples = _decoded(data, _in_place_decoder)
    if not samples:
        return _named(batch, names, b"", b"")
    newest = batch.values[len(batch.values) - _FLOAT64 * len(names) :]
    return _named(batch, names, batch.ts_ns[-_INT64:].tobytes(), newest.tobytes())


def _decoded(
    data: Bytes, decoder: msgspec.msgpack.Decoder[_Batch]
) -> tuple[_Batch, tuple[str, ...], int]:
    """Return a batch, its metric names, the same tuple each time, and the number of samples.

    Creating and hashing thirty strings would cost more than the rest of the batch.
    """
    _check_size(data, "telemetry")
    try:
        batch = decoder.decode(data)
        header = bytes(batch.metrics)
        names = _names_of.get(header)
        if names is None or _run_of.get(batch.worker) != batch.run:
            checked = _telemetry_decoder.decode(data)
            _remember(header, checked)
            names = checked.metrics
    except UNREADABLE as error:
        raise MessageError(f"telemetry: {error}") from None
    samples, odd = divmod(len(batch.ts_ns), _INT64)
    if odd or len(batch.values) != samples * len(names) * _FLOAT64:
        raise MessageError(
            f"telemetry of {batch.worker}: need values of {len(batch.ts_ns) / _INT64:g} samples x "
            f"{len(names)} metrics x {_FLOAT64} bytes, was {len(batch.values)} bytes"
        )
    return batch, names, samples


def _named(batch: _Unnamed, names: tuple[str, ...], ts_ns: bytes, values: bytes) -> Telemetry:
    return Telemetry(
        run=batch.run,
        worker=batch.worker,
        incarnation=batch.incarnation,
        seq=batch.seq,
        state=batch.state,
        step=batch.step,
        progress_age_s=batch.progress_age_s,
        dropped=batch.dropped,
        metrics=names,
        ts_ns=ts_ns,
        values=values,
        v=batch.v,
    )


def _remember(header: bytes, batch: Telemetry) -> None:
    if header not in _names_of and len(header) <= _LONGEST_CACHED_HEADER:
        if len(_names_of) >= _CACHED_HEADERS:
            _names_of.clear()
        _names_of[header] = batch.metrics
    if len(_run_of) >= _CACHED_SENDERS:
        _run_of.clear()
    _run_of[batch.worker] = batch.run


def decode_event(data: Bytes) -> WorkerEvent:
    """Return the hello, exit or note in ``data``, or raise MessageError."""
    return _decode_json(_event_decoder, data, "event")


def decode_command(data: bytes) -> Command:
    """Return the command in ``data``, or raise MessageError."""
    return _decode_json(_command_decoder, data, "command")


def decode_ack(data: Bytes) -> Ack:
    """Return the ack in ``data``, or raise MessageError."""
    return _decode_json(_ack_decoder, data, "ack")


def decode_json(cls: type[_T], data: Bytes, what: str) -> _T:
    """Return the ``cls`` in ``data``, or raise MessageError; ``what`` names it in the error."""
    decoder: msgspec.json.Decoder[_T] = json_decoder(cls)
    return _decode_json(decoder, data, what)


def _decode_json(decoder: msgspec.json.Decoder[_T], data: Bytes, what: str) -> _T:
    _check_size(data, what)
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise MessageError(f"{what}: {in_words(error)}") from None


def _check_size(data: Bytes, what: str) -> None:
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"{what}: need at most {MAX_MESSAGE_BYTES} bytes, was {len(data)}")
