"""A sealed part of telemetry: the rows of an Arrow stream as a Parquet file, bit for bit."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from torchloom_core.live.trajectory.columns import checked, telemetry_rows
from torchloom_core.live.trajectory.layout import TELEMETRY_SCHEMA

_GROUP_BYTES = 8 << 20
"""Arrow bytes of a row group: what is in memory at once, here and in a reader."""

_NAMES = ["run", "worker", "state", "metrics.list.element"]
_COUNTS = ["seq", "ts_recv_ns", "incarnation", "batch_seq", "step", "dropped", "v"]
_ENCODINGS = {
    **dict.fromkeys([*_COUNTS, "ts_ns.list.element"], "DELTA_BINARY_PACKED"),
    **dict.fromkeys(["progress_age_s", "values.list.element"], "BYTE_STREAM_SPLIT"),
}


def row_groups(path: Path) -> Iterator[Any]:
    """Yield the record batches of a sealed part, with the columns of ``TELEMETRY_SCHEMA``."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=_NAMES) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            yield from map(checked, table.combine_chunks().to_batches())


def write(source: BinaryIO, path: Path) -> None:
    """Write the rows of an Arrow stream, and wait until they are on the disk.

    OSError, ValueError or ArrowException if the stream is damaged or the disk is full.
    """
    import pyarrow.parquet as pq  # the Weaver needs it only here

    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            TELEMETRY_SCHEMA,
            compression="zstd",
            use_dictionary=_NAMES,
            column_encoding=_ENCODINGS,
            write_statistics=["seq", "ts_recv_ns"],
        ) as parquet:
            for table in _tables(source):
                parquet.write_table(table, row_group_size=table.num_rows)
        file.flush()
        os.fsync(file.fileno())


def _tables(source: BinaryIO) -> Iterator[Any]:
    waiting: list[Any] = []
    size = 0
    for batch in telemetry_rows(pa.ipc.open_stream(source)):
        waiting.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting).unify_dictionaries()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).unify_dictionaries()
