"""Make a trace bundle of ASD: 12 servers, 19 metrics every 5 minutes, 45 days.

Su et al. recorded it; Li et al., "Multivariate Time Series Anomaly Detection and Interpretation
using Hierarchical Inter-Metric and Temporal Embedding", KDD 2021, published it.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace import BundleWriter, Component, Event

FILE = "asd.parquet"
STEP_S = 300.0
KIND = "anomaly"

_STEP_NS = round(STEP_S * SECOND_NS)
_START_NS = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS
"""The recording counts steps and names no date: this one stands for it."""


def import_asd(folder: Path, out: Path) -> None:
    """Write the recording as a bundle; the labelled part follows the other without a gap.

    A server whose unlabelled part is shorter appears later, so that all are labelled at the same
    time. An incident is a run of labelled steps, unknown before it is over.

    Raises
    ------
    TraceError
        If the file cannot be read, or lacks a column.
    """
    table = _read(folder / FILE)
    metrics = [name for name in table.columns if name.startswith("m") and name[1:].isdigit()]
    lengths = table.groupby(["split", "machine"])["t"].max() + 1
    unlabelled = int(lengths["train"].max())
    steps = unlabelled + int(lengths["test"].max())
    with BundleWriter(
        out,
        name="asd",
        start_ns=_START_NS,
        end_ns=_START_NS + steps * _STEP_NS,
        source="ASD, InterFusion; Li et al., KDD 2021",
        licence="MIT",
        synthetic=False,
        notes="Dates are made up: the recording has none.",
        force=True,
    ) as bundle:
        placed = []
        for machine, rows in table.groupby("machine", sort=True):
            early = unlabelled - int(lengths["train", machine])
            part = rows.assign(
                step=rows["t"] + np.where(rows["split"] == "train", early, unlabelled)
            )
            bundle.add(
                Component(
                    id=str(machine),
                    kind="node",
                    from_ns=_START_NS + early * _STEP_NS if early else None,
                )
            )
            for event in _incidents(str(machine), part[part["split"] == "test"]):
                bundle.add(event)
            placed.append(part)
        long = pd.concat(placed).sort_values(["step", "machine"], kind="stable")
        bundle.telemetry(_telemetry(long, metrics))


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    for column in ("machine", "split", "t", "label"):
        if column not in table.columns:
            raise TraceError(f"{path}: need a column {column}, was none")
    return table


def _incidents(machine: str, rows: pd.DataFrame) -> list[Event]:
    step = rows["step"].to_numpy(np.int64)
    label = np.concatenate([[0], rows["label"].to_numpy(np.int64), [0]])
    first, last = np.flatnonzero(np.diff(label) == 1), np.flatnonzero(np.diff(label) == -1)
    events = []
    for number, (i, j) in enumerate(zip(first.tolist(), last.tolist(), strict=True), 1):
        end_ns = _START_NS + (int(step[j - 1]) + 1) * _STEP_NS
        events.append(
            Event(
                id=f"{machine}-{number:02}",
                t_event=_START_NS + int(step[i]) * _STEP_NS,
                t_avail=end_ns,
                component=machine,
                kind=KIND,
                fatal=False,
                t_resolved=end_ns,
            )
        )
    return events


def _telemetry(rows: pd.DataFrame, metrics: list[str]) -> pa.Table:
    """Return ``(rows x metrics,)`` values, step by step."""
    values = rows[metrics].to_numpy(np.float64)
    t_ns: NDArray[np.int64] = _START_NS + rows["step"].to_numpy(np.int64) * _STEP_NS
    stamps = np.repeat(t_ns, len(metrics))
    return pa.table(
        {
            "t_event": stamps,
            "t_avail": stamps,
            "component": np.repeat(rows["machine"].to_numpy(str), len(metrics)),
            "metric": np.tile(np.array(metrics), len(rows)),
            "value": values.ravel(),
            "valid": ~np.isnan(values.ravel()),
        }
    )
