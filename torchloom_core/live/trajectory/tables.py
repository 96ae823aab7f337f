"""A trajectory as tables and data frames."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchloom_core.live.trajectory.layout import NAME, Line
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.thinned import (
    THINNED_SCHEMA,
    Thinner,
    about,
    tables,
    thinned_files,
)

# Only needed for data frames; an export does without.
if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

_TIME = pa.timestamp("ns", tz="UTC")

EVENTS_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("n", pa.int64()),
        ("outputs", pa.int64()),
        ("ts", _TIME),
        ("io", pa.string()),
        ("kind", pa.string()),
        ("id", pa.string()),
        ("cause", pa.string()),
        ("worker", pa.string()),
        ("body", pa.string()),
    ]
)

SAMPLES_SCHEMA = pa.schema(
    [("ts", _TIME), ("worker", NAME), ("metric", NAME), ("value", pa.float64())]
)

_SAMPLES_AT_ONCE = 1 << 20


def events(root: Path, *, kind: str | None = None, worker: str | None = None) -> "pd.DataFrame":
    """Return the event lines of all epochs, oldest first.

    Columns: ``epoch``, then those of :class:`~torchloom_core.live.trajectory.layout.Line`, with
    ``ts`` as a time and ``body`` as a dict. StateError if there is no trajectory, or it is damaged.
    """
    import pandas as pd

    found = list(_lines(root, kind, worker))
    table = event_table(found)
    frame: pd.DataFrame = table.drop_columns("body").to_pandas()
    bodies = [msgspec.json.decode(line.body) for _, line in found]
    return frame.assign(body=pd.Series(bodies, dtype=object))


def telemetry(
    root: Path, *, worker: str | None = None, metric: str | None = None
) -> "pd.DataFrame":
    """Return the samples of all epochs: a row per value, columns ts, worker, metric, value.

    ``ts`` is the time by the worker's clock. Missing values have no row. Rows are in the order in
    which the Weaver received them. Telemetry that was thinned is not in it, which is logged; see
    :func:`thinned_telemetry`. StateError as of :func:`events`.
    """
    for missing in filter(None, (record.missing for record in read_epochs(root))):
        log.warning("%s", missing)
    found = [SAMPLES_SCHEMA.empty_table(), *_samples(root, worker, metric)]
    frame: pd.DataFrame = pa.concat_tables(found).unify_dictionaries().to_pandas()
    return frame


def thinned_telemetry(root: Path) -> "pd.DataFrame":
    """Return the thinned telemetry of all epochs: a row per worker, metric and interval.

    Columns: those of :data:`~torchloom_core.live.trajectory.thinned.THINNED_SCHEMA`, ``ts`` the
    start of the interval by the worker's clock, and ``every_s`` its length. Two files that meet
    within an interval are merged. StateError as of :func:`events`.
    """
    import pandas as pd

    merged: dict[float, Thinner] = {}
    for record in read_epochs(root):
        for file in thinned_files(record.folder):
            every_s = about(file.path).every_s
            for rows in tables(file.path) if every_s else ():
                merged.setdefault(every_s, Thinner(every_s)).add_aggregates(rows)
    frames = [one.table().to_pandas().assign(every_s=every_s) for every_s, one in merged.items()]
    empty: pd.DataFrame = THINNED_SCHEMA.empty_table().to_pandas().assign(every_s=0.0)
    return pd.concat(frames) if frames else empty


def _lines(
    root: Path, kind: str | None = None, worker: str | None = None
) -> Iterator[tuple[int, Line]]:
    for record in read_epochs(root):
        for line in record.lines():
            if (kind is None or line.kind == kind) and (worker is None or line.worker == worker):
                yield record.meta.epoch, line


def event_table(found: list[tuple[int, Line]]) -> Any:
    """Return epochs and lines as a table with the columns of ``EVENTS_SCHEMA``."""
    rows = [
        {
            **{field: getattr(line, field) for field in line.__struct_fields__},
            "epoch": epoch,
            "ts": line.ts_ns,
            "body": bytes(line.body).decode(),
        }
        for epoch, line in found
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)


def _samples(root: Path, worker: str | None = None, metric: str | None = None) -> Iterator[Any]:
    for record in read_epochs(root):
        for rows in record.record_batches():
            chosen = rows if worker is None else rows.filter(pc.equal(rows["worker"], worker))
            if chosen.num_rows:
                yield long_samples(chosen, metric)


def long_samples(rows: Any, metric: str | None = None) -> Any:
    """Turn rows of ``(samples, metrics)`` lists into a table with one value per row."""
    ts_ns, values = rows["ts_ns"].flatten().to_numpy(), rows["values"].flatten().to_numpy()
    workers, metrics = rows["worker"], rows["metrics"].flatten()
    lengths = pc.list_value_length(rows["values"]).to_numpy()
    wide = pc.list_value_length(rows["metrics"]).to_numpy()
    first_ts = _starts(pc.list_value_length(rows["ts_ns"]).to_numpy())

    row = np.repeat(np.arange(len(lengths)), lengths)  # (values,) and so are all below
    place = np.arange(len(values)) - _starts(lengths)[row]
    metric_code = metrics.indices.to_numpy()[_starts(wide)[row] + place % wide[row]]
    keep = ~np.isnan(values)
    if metric is not None:
        keep &= metric_code == pc.index(metrics.dictionary, metric).as_py()
    row, place = row[keep], place[keep]
    ts = ts_ns[first_ts[row] + place // wide[row]]
    worker_code = workers.indices.to_numpy()[row]
    columns = [
        ts,
        pa.DictionaryArray.from_arrays(worker_code, workers.dictionary),
        pa.DictionaryArray.from_arrays(metric_code[keep], metrics.dictionary),
        values[keep],
    ]
    return pa.table(columns, schema=SAMPLES_SCHEMA)


def _starts(lengths: Any) -> Any:
    return np.cumsum(lengths) - lengths


def gathered(tables: Iterator[Any]) -> Iterator[Any]:
    """Join small tables, as each Parquet row group has an overhead."""
    waiting: list[Any] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _SAMPLES_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
