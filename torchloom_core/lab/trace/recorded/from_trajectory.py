"""Convert one incarnation of a Weaver to a bundle; ``torchloom trace from-trajectory`` calls it.

Every worker is a component of kind ``worker``, named ``<node>/<worker>``, under its node. The
watched components are the nodes: workers of one node count as one, a metric is their maximum, and
an unexpected exit of one is a failure of the node. The bundle also stores every input of the kernel
bit for bit: see :mod:`torchloom_core.lab.trace.recorded`.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.writer import BundleWriter, refuse_to_replace
from torchloom_core.lab.trace.recorded.recorded import IncarnationLine, input_line
from torchloom_core.lab.trace.recorded.recorded_rows import RecordedRows
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.codec import UNREADABLE, encode
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.messages import Telemetry

_VALUES_AT_ONCE = 1 << 20

_output: msgspec.json.Decoder[Output] = json_decoder(Output)


def from_trajectory(
    root: Path,
    out: Path,
    *,
    epoch: int | None = None,
    licence: str = "private",
    force: bool = False,
) -> None:
    """Write one incarnation of the trajectory at ``root`` as the bundle ``out``.

    Parameters
    ----------
    epoch : int, optional
        The Weaver's epoch of that incarnation; by default the newest.

    Raises
    ------
    StateError
        If there is no trajectory, or it is damaged.
    TraceError
        If there is no such epoch, it has no input, or ``out`` exists and ``force`` is not set.
    """
    refuse_to_replace(out, force=force)
    incarnation = _chosen(root, epoch)
    start_ns, end_ns = _span(incarnation)
    meta = incarnation.meta
    rows = RecordedRows(meta.run, start_ns, incarnation.config.costs)
    samples = _Samples(start_ns)
    with BundleWriter(
        out,
        name=out.stem,
        start_ns=start_ns,
        end_ns=end_ns,
        source=f"torchLoom {meta.torchloom}: run {meta.run}, epoch {meta.epoch}",
        licence=licence,
        synthetic=False,
        force=force,
    ) as writer:
        writer.add_input(
            encode(
                IncarnationLine(
                    run=meta.run,
                    epoch=meta.epoch,
                    config=meta.config,
                    plugins=meta.plugins,
                    overruns=tuple(incarnation.overruns()),
                )
            )
        )
        for seq, ts_ns, message, outputs in incarnation.inputs():
            writer.add_input(encode(input_line(seq, ts_ns, message)))
            if isinstance(message, Telemetry):
                samples.take(message, rows.component_of(message.worker), ts_ns)
            else:
                rows.take(message, ts_ns, [_read(output, incarnation, seq) for output in outputs])
            if samples.values >= _VALUES_AT_ONCE:
                writer.telemetry(samples.table())
        if samples.values:
            writer.telemetry(samples.table())
        for row in rows.rows():
            writer.add(row)


def _read(output: bytes, incarnation: EpochRecord, seq: int) -> Output:
    try:
        return _output.decode(output)
    except UNREADABLE as error:
        raise TraceError(f"{incarnation.folder}: an output of input {seq}: {error}") from None


def _chosen(root: Path, epoch: int | None) -> EpochRecord:
    found = read_epochs(root)
    if not found:
        raise TraceError(f"{root}: need a recorded incarnation of a Weaver, was none")
    if epoch is None:
        return found[-1]
    for incarnation in found:
        if incarnation.meta.epoch == epoch:
            return incarnation
    epochs = ", ".join(str(incarnation.meta.epoch) for incarnation in found)
    raise TraceError(f"{root}: need a recorded epoch ({epochs}), was {epoch}")


def _span(incarnation: EpochRecord) -> tuple[int, int]:
    """Return the start and the end of the incarnation."""
    start_ns, last_ns = incarnation.meta.started_ns, None
    for recorded in incarnation.inputs():
        start_ns, last_ns = min(start_ns, recorded.ts_recv_ns), recorded.ts_recv_ns
    if last_ns is None:
        raise TraceError(f"{incarnation.folder}: need an input, was none")
    # A bundle's span is never empty, but an incarnation may have a single input.
    return start_ns, last_ns + 1


class _Samples:
    """Buffered samples that become a table.

    Attributes
    ----------
    values : int
        Number of buffered values.
    """

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._code_of: dict[str, int] = {}
        self._parts: list[tuple[Any, ...]] = []
        self.values = 0

    def take(self, batch: Telemetry, component: str, ts_ns: int) -> None:
        """Add the samples of a batch, unless its worker never sent a hello."""
        if not component or not batch.values:
            return
        values = np.frombuffer(batch.values, "<f8")
        sampled_ns = np.frombuffer(batch.ts_ns, "<i8").clip(self._start_ns, ts_ns)
        metrics = np.array([self._code(name) for name in batch.metrics], np.int32)
        self._parts.append(
            (
                np.repeat(sampled_ns, len(metrics)),
                np.full(len(values), ts_ns, np.int64),
                np.full(len(values), self._code(component), np.int32),
                np.tile(metrics, len(sampled_ns)),
                values,
            )
        )
        self.values += len(values)

    def table(self) -> Any:
        """Return and clear the buffer as rows of telemetry; a non-finite value is not valid."""
        t_event, t_avail, component, metric, value = (
            np.concatenate(column) for column in zip(*self._parts, strict=True)
        )
        self._parts, self.values = [], 0
        names = pa.array(list(self._code_of), pa.string())
        return pa.table(
            {
                "t_event": t_event,
                "t_avail": t_avail,
                "component": pa.DictionaryArray.from_arrays(component, names),
                "metric": pa.DictionaryArray.from_arrays(metric, names),
                "value": value,
                "valid": np.isfinite(value),
            }
        )

    def _code(self, name: str) -> int:
        return self._code_of.setdefault(name, len(self._code_of))
