"""Convert one incarnation of a Weaver to a bundle, and read the kernel's inputs back from it.

Every worker is a component of kind ``worker``, named ``<node>/<worker>``, under its node. The
watched components are the nodes: workers of one node count as one, a metric is their maximum, and
an unexpected exit of one is a failure of the node. The inputs are stored bit for bit.
"""

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import MessageError, TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import INPUTS
from torchloom_core.lab.trace.bundle.telemetry import telemetry_table
from torchloom_core.lab.trace.bundle.writer import BundleWriter, refuse_to_replace
from torchloom_core.lab.trace.recorded.recorded_rows import RecordedRows
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.wire.capabilities import json_decoder
from torchloom_core.wire.codec import UNREADABLE, decode_telemetry, encode, encode_telemetry
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import Input, RecordingGap
from torchloom_core.wire.limits import Int64
from torchloom_core.wire.messages import Telemetry


class IncarnationLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of ``inputs.jsonl``: the incarnation of the Weaver, with its whole config.

    ``overruns`` are ``(seq, policy, detail)`` of policies that exceeded their time limit, which a
    replay cannot reproduce.
    """

    run: str
    epoch: int
    config: dict[str, Any]
    plugins: dict[str, str] = {}
    overruns: tuple[tuple[int, str, str], ...] = ()


class InputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every other line: ``telemetry`` as base64 of exact msgpack, or another message."""

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


def recorded_incarnation(bundle: Bundle) -> RecordedIncarnation:
    """Return config and overruns; TraceError if the bundle is not of a trajectory."""
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
    """Yield ``(ts_ns, message)`` in the kernel's order; TraceError at a damaged line."""
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

    ``epoch`` is the Weaver's epoch of that incarnation, by default the newest. StateError if there
    is no trajectory, or it is damaged. TraceError if there is no such epoch, it has no input, some
    of its telemetry was thinned, or ``out`` exists and ``force`` is not set.
    """
    refuse_to_replace(out, force=force)
    incarnation = _chosen(root, epoch)
    if missing := incarnation.missing:
        raise TraceError(f"{incarnation.folder}: need the raw telemetry of an epoch: {missing}")
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
            if isinstance(message, Telemetry):
                packed = base64.b64encode(encode_telemetry(message)).decode()
                line = InputLine(seq=seq, ts_ns=ts_ns, telemetry=packed)
                samples.take(message, rows.component_of(message.worker), ts_ns)
            else:
                line = InputLine(seq=seq, ts_ns=ts_ns, body=message)
                rows.take(message, ts_ns, [_read(output, incarnation, seq) for output in outputs])
            writer.add_input(encode(line))
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
    """Buffered samples that become a table; ``values`` is their number."""

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
        names = list(self._code_of)
        return telemetry_table(t_event, t_avail, (component, names), (metric, names), value)

    def _code(self, name: str) -> int:
        return self._code_of.setdefault(name, len(self._code_of))
