"""Telemetry to Arrow rows and back, bit for bit.

The Weaver writes messages as they came; the process that seals a part, and readers, turn them into
columns. A batch's bytes are copied into these unchanged, so a NaN retains its payload.
"""

import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from torchloom_core.floor.errors import MessageError
from torchloom_core.live.trajectory.layout import MESSAGE_SCHEMA, TELEMETRY_SCHEMA
from torchloom_core.live.trajectory.parts import Buffer
from torchloom_core.wire.codec import Bytes, decode_telemetry
from torchloom_core.wire.messages import Telemetry, WorkerState

_MESSAGES_AT_ONCE = 512
_BYTES_AT_ONCE = 1 << 20
"""So much is written at once: what is still in the processor's cache is written faster."""

_CODE_BYTES = 4
_NUMBER_BYTES = 8


class Received(NamedTuple):
    """A batch, its number among the inputs of its epoch, and the time it was received."""

    seq: int
    ts_recv_ns: int
    batch: Telemetry


class _Pieces:
    """A sink for pyarrow that collects the written buffers without a copy."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []

    def write(self, piece: Buffer) -> None:
        self._pieces.append(piece)

    def take(self) -> list[Buffer]:
        pieces, self._pieces = self._pieces, []
        return pieces


class MessageBuffer:
    """Messages that wait to be written, in memory that is used again: it stays in the cache."""

    def __init__(self) -> None:
        self._memory = io.BytesIO()
        self._seq = array("q")
        self._ts_recv_ns = array("q")
        self._ends = array("i", [0])

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._seq)

    def add(self, seq: int, ts_recv_ns: int, message: Bytes) -> bool:
        """Copy one message; return whether it is time to write them."""
        self._seq.append(seq)
        self._ts_recv_ns.append(ts_recv_ns)
        self._memory.write(message)
        size = self._memory.tell()
        self._ends.append(size)
        return size >= _BYTES_AT_ONCE or len(self._seq) >= _MESSAGES_AT_ONCE

    def clear(self) -> None:
        """Forget all; nothing may refer to :meth:`rows` any more."""
        self._memory.seek(0)
        del self._seq[:], self._ts_recv_ns[:], self._ends[1:]

    def rows(self) -> Any:
        """Return the messages in place, a record batch with the columns of ``MESSAGE_SCHEMA``."""
        data = self._memory.getbuffer()[: self._ends[-1]]
        parts = [(self._seq,), (self._ts_recv_ns,), (self._ends, data)]
        columns = [
            pa.Array.from_buffers(field.type, len(self), [None, *map(pa.py_buffer, buffers)])
            for field, buffers in zip(MESSAGE_SCHEMA, parts, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


class MessageStream:
    """One Arrow IPC stream of telemetry messages as they came; the schema precedes the first."""

    def __init__(self) -> None:
        self._sink = _Pieces()
        # Compression takes two to six times as long as the encoding, on the Weaver's loop.
        options = pa.ipc.IpcWriteOptions(use_threads=False)
        file = pa.PythonFile(self._sink, mode="w")
        self._stream = pa.ipc.new_stream(file, MESSAGE_SCHEMA, options=options)

    def encode(self, messages: MessageBuffer) -> list[Buffer]:
        """Return the pieces to append, in order, for one record batch; at least one message."""
        self._stream.write_batch(messages.rows())
        return self._sink.take()


def telemetry_rows(stream: Any) -> Iterator[Any]:
    """Yield the rows of a part's stream in record batches with the columns of ``TELEMETRY_SCHEMA``.

    ValueError or ArrowException if the stream is damaged.
    """
    if stream.schema.equals(MESSAGE_SCHEMA):
        columns = _Columns()
        for rows in stream:
            yield columns.of(_received(rows))
    else:
        yield from map(checked, stream)  # format 3 and before


def checked(rows: Any) -> Any:
    """Return rows that have the columns of ``TELEMETRY_SCHEMA``, all values, and whole samples.

    ValueError or ArrowException if they have not.
    """
    if not rows.schema.equals(TELEMETRY_SCHEMA):
        raise ValueError("the columns are not those of telemetry")
    rows.validate(full=True)
    lists = [rows[name] for name in ("metrics", "ts_ns", "values")]
    if any(column.null_count for column in (*rows.columns, *(one.values for one in lists))):
        raise ValueError("a value is missing")
    metrics, samples, values = (np.diff(one.offsets.to_numpy()) for one in lists)
    if (metrics * samples != values).any():
        raise ValueError("need samples x metrics values")
    return rows


def _received(rows: Any) -> list[Received]:
    rows.validate(full=True)
    try:
        if any(column.null_count for column in rows.columns):
            raise ValueError("a value is missing")
        columns = (rows[name].to_pylist() for name in MESSAGE_SCHEMA.names)
        return [Received(seq, ts, decode_telemetry(m)) for seq, ts, m in zip(*columns, strict=True)]
    except MessageError as error:
        raise ValueError(str(error)) from None


class _Columns:
    """Batches as rows; a name has the same code in all record batches."""

    def __init__(self) -> None:
        self._runs = _Names()
        self._workers = _Names()
        self._states = _Names()
        self._metrics = _Names()
        self._metric_codes: dict[tuple[str, ...], bytes] = {}

    def of(self, received: Sequence[Received]) -> Any:
        """Return a record batch with the columns of ``TELEMETRY_SCHEMA``, of at least one row."""
        seq, ts_recv_ns, batches = zip(*received, strict=True)
        values = zip(*map(astuple, batches), strict=True)
        of = dict(zip(Telemetry.__struct_fields__, values, strict=True))
        metric_codes = self._codes_of(of["metrics"])
        columns = [
            _column(pa.int64(), seq),
            _column(pa.int64(), ts_recv_ns),
            self._runs.column(self._runs.codes(of["run"])),
            self._workers.column(self._workers.codes(of["worker"])),
            _column(pa.int64(), of["incarnation"]),
            _column(pa.int64(), of["seq"]),
            self._states.column(self._states.codes(of["state"])),
            _column(pa.int64(), of["step"]),
            _column(pa.float64(), of["progress_age_s"]),
            _column(pa.int64(), of["dropped"]),
            _lists(metric_codes, _CODE_BYTES, self._metrics.column),
            _lists(of["ts_ns"], _NUMBER_BYTES, partial(_numbers, pa.int64())),
            _lists(of["values"], _NUMBER_BYTES, partial(_numbers, pa.float64())),
            _column(pa.int64(), of["v"]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=TELEMETRY_SCHEMA)

    def _codes_of(self, headers: Iterable[tuple[str, ...]]) -> list[bytes]:
        """Return the codes of each batch's metric names."""
        found = []
        last: tuple[str, ...] | None = None
        codes = b""
        for names in headers:
            if names is not last:  # to hash thirty names takes longer than all else here
                if names not in self._metric_codes:
                    self._metric_codes[names] = self._metrics.codes(names)
                codes, last = self._metric_codes[names], names
            found.append(codes)
        return found


class _Names:
    """Strings that are stored once and then referred to by number."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._array = _texts([])

    def codes(self, names: Iterable[str]) -> bytes:
        code_of = self._code_of
        codes = [code_of.setdefault(name, len(code_of)) for name in names]
        return np.array(codes, np.int32).tobytes()

    def column(self, codes: bytes) -> Any:
        if len(self._array) < len(self._code_of):
            self._array = _texts(self._code_of)
        indices = _numbers(pa.int32(), codes, _CODE_BYTES)
        return pa.DictionaryArray.from_arrays(indices, self._array)


# From buffers: pa.array imports pandas where that is installed, which takes 33 MB.


def _column(kind: Any, numbers: Sequence[float]) -> Any:
    return _numbers(kind, np.array(numbers, kind.to_pandas_dtype()).tobytes())


def _numbers(kind: Any, data: bytes, item_bytes: int = _NUMBER_BYTES) -> Any:
    return pa.Array.from_buffers(kind, len(data) // item_bytes, [None, pa.py_buffer(data)])


def _texts(texts: Iterable[str]) -> Any:
    parts = [text.encode() for text in texts]
    data = [pa.py_buffer(_ends(map(len, parts))), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), [None, *data])


def _ends(sizes: Iterable[int]) -> bytes:
    """Return the offsets of parts with these sizes."""
    return np.cumsum([0, *sizes], dtype=np.int32).tobytes()


def _lists(parts: Sequence[bytes], item_bytes: int, column: Callable[[bytes], Any]) -> Any:
    offsets = _numbers(pa.int32(), _ends(len(part) // item_bytes for part in parts), _CODE_BYTES)
    return pa.ListArray.from_arrays(offsets, column(b"".join(parts)))


def decode(rows: Any) -> Iterator[Received]:
    """Return the batches of one record batch, as they were received."""
    names = {field: _dictionary(rows[field]) for field in ("run", "worker", "state")}
    metrics, metrics_at = _flat(rows["metrics"])
    metric_names = metrics.dictionary.to_pylist()
    codes = metrics.indices.to_numpy()
    ts_ns, ts_at = _flat(rows["ts_ns"])
    values, values_at = _flat(rows["values"])
    ts_ns, values = ts_ns.to_numpy(), values.to_numpy()
    tuples: dict[bytes, tuple[str, ...]] = {}
    plain = ("seq", "ts_recv_ns", "incarnation", "batch_seq", "step", "progress_age_s", "dropped")
    numbers = zip(*(rows[field].to_pylist() for field in (*plain, "v")), strict=True)
    for row, (seq, ts_recv_ns, incarnation, batch_seq, step, age_s, dropped, v) in enumerate(
        numbers
    ):
        own = codes[metrics_at[row] : metrics_at[row + 1]]
        key = own.tobytes()
        if key not in tuples:
            tuples[key] = tuple(metric_names[code] for code in own)
        batch = Telemetry(
            run=names["run"][row],
            worker=names["worker"][row],
            incarnation=incarnation,
            seq=batch_seq,
            state=cast(WorkerState, names["state"][row]),
            step=step,
            progress_age_s=age_s,
            dropped=dropped,
            metrics=tuples[key],
            ts_ns=ts_ns[ts_at[row] : ts_at[row + 1]].tobytes(),
            values=values[values_at[row] : values_at[row + 1]].tobytes(),
            v=v,
        )
        yield Received(seq, ts_recv_ns, batch)


def _dictionary(column: Any) -> list[str]:
    names = column.dictionary.to_pylist()
    return [names[code] for code in column.indices.to_numpy()]


def _flat(column: Any) -> tuple[Any, Any]:
    """Return a list column's items and ``(rows + 1,)`` offsets into them."""
    offsets = column.offsets.to_numpy()
    return column.values, offsets
