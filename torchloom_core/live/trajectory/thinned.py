"""Thinned telemetry: count, min, mean and max per worker, metric and interval, in Parquet.

A file ``thinned-<first>-<last>.parquet`` stands in for the telemetry parts ``first`` to ``last`` of
an epoch. Its aggregates can be merged further. Once even these were dropped it has no rows, and
still says which inputs are missing.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.layout import NAME, part_paths
from torchloom_core.live.trajectory.parts import sync_folder

_log = logging.getLogger(__name__)

THINNED_SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("ns", tz="UTC")),
        ("worker", NAME),
        ("metric", NAME),
        ("count", pa.int64()),
        ("min", pa.float64()),
        ("mean", pa.float64()),
        ("max", pa.float64()),
    ]
)
"""A row per interval, ``ts`` its start by the worker's clock."""

_ABOUT = b"torchloom"
_NAME = re.compile(r"thinned-(\d{6,})-(\d{6,})\.parquet")
_ROWS_AT_ONCE = 1 << 20
_KEYS = ["worker", "metric", "slot"]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a thinned file stands for, in its metadata.

    ``first_seq`` to ``last_seq`` are the epoch's inputs among which telemetry is missing,
    ``first_ns`` to ``last_ns`` when they were received, ``batches`` their number. ``every_s`` is
    the interval; 0 once the aggregates were dropped.
    """

    first_seq: int
    last_seq: int
    first_ns: int
    last_ns: int
    batches: int
    every_s: float
    v: int = 1

    def __str__(self) -> str:
        """Return what is missing in one line."""
        span = f"{moment_text(self.first_ns)} to {moment_text(self.last_ns)}"
        kept = f"thinned to {self.every_s:g} s" if self.every_s else "deleted"
        return f"the raw telemetry of {span} was {kept}"


class ThinnedFile(NamedTuple):
    """A thinned file, and the numbers of the first and last part that it stands for."""

    first: int
    last: int
    path: Path

    def covers(self, first: int, last: int) -> bool:
        """Return whether it stands for these parts."""
        return self.first <= first and last <= self.last


def thinned_files(folder: Path) -> list[ThinnedFile]:
    """Return the thinned files of an epoch, oldest first, without those that a larger one covers.

    A larger one exists beside them if the process that merged them was killed.
    """
    found = all_thinned(folder)
    return sorted(
        file
        for file in found
        if not any(one is not file and one.covers(file.first, file.last) for one in found)
    )


def all_thinned(folder: Path) -> list[ThinnedFile]:
    """Return the thinned files of an epoch, those that a larger one covers included."""
    return [
        ThinnedFile(int(match[1]), int(match[2]), path)
        for path in folder.glob("thinned-*.parquet")
        if (match := _NAME.fullmatch(path.name))
    ]


def part_number(path: Path) -> int:
    """Return the number of a part."""
    return int(path.name.partition("-")[2].partition(".")[0])


def raw_parts(folder: Path) -> list[Path]:
    """Return the telemetry parts that no thinned file stands for, oldest first."""
    files = thinned_files(folder)
    parts = part_paths(folder, "telemetry")
    return [p for p in parts if not any(f.covers(n := part_number(p), n) for f in files)]


def about(path: Path) -> About:
    """Return what a thinned file stands for; StateError if it is damaged."""
    try:
        return msgspec.json.decode(pq.read_schema(path).metadata[_ABOUT], type=About)
    except (OSError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise StateError(f"{path}: cannot be read: {error}") from None


def readable(folder: Path) -> Iterator[tuple[ThinnedFile, About]]:
    """Yield the thinned files of an epoch and what they stand for; a damaged one is logged."""
    for file in thinned_files(folder):
        try:
            yield file, about(file.path)
        except StateError as error:
            warn_damaged(file.path, str(error).partition(": ")[2])


@cache
def warn_damaged(path: Path, why: str) -> None:
    """Log once that a file is left as it is."""
    _log.warning("%s: damaged, left as it is: %s", path, " ".join(why.split()))


def tables(path: Path) -> Iterator[Any]:
    """Yield the rows of a thinned file; StateError if it is damaged."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield pa.Table.from_batches([batch]).cast(THINNED_SCHEMA)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StateError(f"{path}: cannot be read: {error}") from None


class Thinner:
    """Merges samples and aggregates to intervals of ``every_s``."""

    def __init__(self, every_s: float) -> None:
        self._every_ns = round(every_s * SECOND_NS)
        self._code_of: dict[str, int] = {}
        self._waiting: list[Any] = []
        self._rows = 0

    def add_samples(self, samples: Any) -> None:
        """Add a table with the columns ts, worker, metric and value."""
        value = samples["value"]
        one = pa.array(np.ones(len(value), np.int64))
        self._add(samples, {"count": one, "min": value, "total": value, "max": value})

    def add_aggregates(self, rows: Any) -> None:
        """Add a table with the columns of :data:`THINNED_SCHEMA`."""
        total = pc.multiply(rows["mean"], pc.cast(rows["count"], pa.float64()))
        values = {"count": rows["count"], "min": rows["min"], "total": total, "max": rows["max"]}
        self._add(rows, values)

    def table(self) -> Any:
        """Return all aggregates, by metric, worker and time."""
        self._merge()
        merged = self._waiting[0] if self._waiting else _empty()
        merged = merged.sort_by([(key, "ascending") for key in ("metric", "worker", "slot")])
        names = pa.array(list(self._code_of), pa.string())
        by_name = (
            pa.DictionaryArray.from_arrays(merged[key].combine_chunks(), names)
            for key in ("worker", "metric")
        )
        ts = pc.multiply(merged["slot"], self._every_ns).cast(THINNED_SCHEMA.field("ts").type)
        mean = pc.divide(merged["total"], pc.cast(merged["count"], pa.float64()))
        columns = [ts, *by_name, merged["count"], merged["min"], mean, merged["max"]]
        return pa.table(columns, schema=THINNED_SCHEMA)

    def _add(self, rows: Any, values: dict[str, Any]) -> None:
        ts_ns = rows["ts"].combine_chunks().cast(pa.int64()).to_numpy()
        worker, metric = (self._codes(rows[key]) for key in ("worker", "metric"))
        slot = pa.array(ts_ns // self._every_ns)
        self._waiting.append(pa.table({"worker": worker, "metric": metric, "slot": slot, **values}))
        self._rows += len(ts_ns)
        if self._rows > 4 * _ROWS_AT_ONCE:
            self._merge()

    def _codes(self, names: Any) -> Any:
        column = names.unify_dictionaries().combine_chunks()
        code_of = self._code_of
        codes = [code_of.setdefault(name, len(code_of)) for name in column.dictionary.to_pylist()]
        return pa.array(np.array(codes, np.int32)[column.indices.to_numpy()])

    def _merge(self) -> None:
        if not self._waiting:
            return
        grouped = (
            pa.concat_tables(self._waiting)
            .group_by(_KEYS, use_threads=False)
            .aggregate([("count", "sum"), ("min", "min"), ("total", "sum"), ("max", "max")])
        )
        names = [name.rpartition("_")[0] or name for name in grouped.column_names]
        self._waiting, self._rows = [grouped.rename_columns(names)], 0


def _empty() -> Any:
    kinds = {"worker": pa.int32(), "metric": pa.int32(), "slot": pa.int64(), "count": pa.int64()}
    kinds |= dict.fromkeys(("min", "total", "max"), pa.float64())
    return pa.schema(list(kinds.items())).empty_table()


def write(folder: Path, first: int, last: int, found: About, table: Any) -> Path:
    """Write a thinned file for the parts ``first`` to ``last``; it is there as a whole or not."""
    path = folder / f"thinned-{first:06d}-{last:06d}.parquet"
    draft = path.with_suffix(".new")
    metadata = {_ABOUT: json.dumps(msgspec.to_builtins(found))}
    try:
        pq.write_table(
            table.replace_schema_metadata(metadata),
            draft,
            compression="zstd",
            use_dictionary=["worker", "metric", "ts"],
            column_encoding={name: "BYTE_STREAM_SPLIT" for name in ("count", "min", "mean", "max")},
        )
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def merged_about(found: Iterable[About], every_s: float) -> About:
    """Return what one file in place of several stands for."""
    all_of = list(found)
    return About(
        first_seq=min(one.first_seq for one in all_of),
        last_seq=max(one.last_seq for one in all_of),
        first_ns=min(one.first_ns for one in all_of),
        last_ns=max(one.last_ns for one in all_of),
        batches=sum(one.batches for one in all_of),
        every_s=every_s,
    )
