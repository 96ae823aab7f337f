"""Rewrite complete parts of telemetry as Parquet, in a thread beside the Weaver's loop.

A part is written as an Arrow stream, which a kill cannot damage; as Parquet it takes a quarter of
the bytes. Rows, columns and their order are the same, bit for bit.
"""

import fcntl
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from torchloom_core.live.trajectory.layout import SEALED, TELEMETRY_SCHEMA

_SMALLEST_BYTES = 1 << 16
"""A smaller part would not be smaller as Parquet."""

_GROUP_BYTES = 8 << 20
"""Arrow bytes of a row group: what is in memory at once, here and in a reader."""

_NAMES = ["run", "worker", "state", "metrics.list.element"]
_COUNTS = ["seq", "ts_recv_ns", "incarnation", "batch_seq", "step", "dropped", "v"]
_ENCODINGS = {
    **dict.fromkeys([*_COUNTS, "ts_ns.list.element"], "DELTA_BINARY_PACKED"),
    **dict.fromkeys(["progress_age_s", "values.list.element"], "BYTE_STREAM_SPLIT"),
}

_LOWEST_PRIORITY = 19
_END_S = 2.0

_log = logging.getLogger(__name__)


class Sealer:
    """Seals parts one by one, when the machine has nothing else to do.

    A part that is not sealed in time is sealed by the next Weaver.
    """

    def __init__(self) -> None:
        self._parts: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sealing", daemon=True)

    def add(self, part: Path) -> None:
        """Seal this part, to which nothing will be appended."""
        if not self._thread.is_alive():
            self._thread.start()
        self._parts.put(part)

    def close(self) -> None:
        """Wait a little for what was added."""
        if self._thread.is_alive():
            self._parts.put(None)
            self._thread.join(_END_S)

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere this would be the priority of the whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while (part := self._parts.get()) is not None:
            try:
                seal(part)
            except (OSError, ValueError, pa.ArrowException) as error:
                _log.warning("%s: not sealed: %s", part, error)


def seal(part: Path) -> None:
    """Replace an Arrow part by its Parquet file, unless it is small or another process does it.

    OSError, ValueError or ArrowException if it is damaged or the disk is full: it remains.
    """
    sealed = part.with_suffix(SEALED)
    fresh = sealed.with_suffix(f"{SEALED}.new")
    try:
        with part.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _SMALLEST_BYTES:
                return
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, fresh)
            fresh.replace(sealed)
            part.unlink()
    except (FileNotFoundError, BlockingIOError):
        return  # another process has sealed it, or does so now
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def row_groups(path: Path) -> Iterator[Any]:
    """Yield the record batches of a sealed part, with the columns of ``TELEMETRY_SCHEMA``."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=_NAMES) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            yield from table.combine_chunks().to_batches()


def _write(source: Any, path: Path) -> None:
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


def _tables(source: Any) -> Iterator[Any]:
    waiting: list[Any] = []
    size = 0
    for batch in pa.ipc.open_stream(source):
        waiting.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting).unify_dictionaries()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).unify_dictionaries()
