"""Read the recorded epochs of a run, also those that were cut short or are still running."""

import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from torchloom_core.config.ranges import MOST
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import open_regular
from torchloom_core.floor.suggest import listed
from torchloom_core.live.dispatch.policy_guard import OVERRAN
from torchloom_core.live.trajectory.columns import decode, telemetry_rows
from torchloom_core.live.trajectory.earlier_names import renamed_config, renamed_line
from torchloom_core.live.trajectory.layout import (
    FORMAT,
    META,
    NAMES_FORMAT,
    SEALED,
    SEALED_FORMAT,
    Line,
    Meta,
    part_paths,
    state_error,
)
from torchloom_core.live.trajectory.parts import whole_bytes
from torchloom_core.live.trajectory.sealed import row_groups
from torchloom_core.live.trajectory.thinned import (
    About,
    about,
    merged_about,
    raw_parts,
    thinned_files,
)
from torchloom_core.wire.capabilities import json_decoder, record_decoder
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import PolicyFailed
from torchloom_core.wire.events import Input, RecordingGap
from torchloom_core.wire.limits import MAX_COUNT
from torchloom_core.wire.messages import Telemetry

_line_decoder = msgspec.json.Decoder(Line)
_input_decoder: msgspec.json.Decoder[Input] = json_decoder(Input)
_own_decoder: msgspec.json.Decoder[Input] = record_decoder(Input)
_meta_decoder = msgspec.json.Decoder(Meta)

_EPOCH = re.compile(r"epoch-\d{6,}")

_NAMED = 3

_T = TypeVar("_T")


class Recorded(NamedTuple):
    """One kernel input and its outputs, each as the recorded JSON."""

    seq: int
    ts_recv_ns: int
    message: Telemetry | Input
    outputs: tuple[bytes, ...]


class EpochRecord:
    """The record of one epoch, one process of the Weaver.

    A record torn by a crash at the end of a file is skipped; a damaged one anywhere else raises
    StateError with the file and the line or row.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / META
        self.meta = _decode(_meta_decoder, _read(path), str(path))
        if self.meta.v > FORMAT:
            raise StateError(f"{path}: need format <= {FORMAT}, was {self.meta.v}")

    @property
    def is_earlier(self) -> bool:
        """Whether an older version recorded it: names are translated, texts are not compared."""
        return self.meta.v < NAMES_FORMAT

    @cached_property
    def config(self) -> Config:
        """The config of this epoch; StateError if this version does not know all of its keys."""
        try:
            config = self.meta.config
            config = renamed_config(config) if self.is_earlier else config
            # Earlier versions forgot no worker.
            weaver = {"forget_after_s": MOST, **config.get("weaver", {})}
            return msgspec.convert({**config, "weaver": weaver}, Config)
        except msgspec.ValidationError as error:
            raise StateError(f"{self.folder / META}: config: {error}") from None

    def inputs(self) -> Iterator[Recorded]:
        """Yield every input in the order in which the kernel received it.

        Telemetry that was thinned is skipped: see :attr:`thinned`.
        After an unfinished flush the inputs end before the first missing one, so the result is
        always a complete beginning. Inputs that were not recorded are skipped at the
        :class:`~torchloom_core.wire.events.RecordingGap` that names them.
        """
        missing = deque((one.first_seq, one.last_seq) for one in self.thinned)
        # Telemetry is written after events: listed first, it is never ahead of them.
        rows = itertools.chain.from_iterable(map(decode, self.record_batches()))
        row = next(rows, None)
        groups = self._groups()
        group = next(groups, None)
        seq = 1
        while True:
            if row is not None and row.seq == seq:
                yield Recorded(seq, row.ts_recv_ns, row.batch, ())
                row = next(rows, None)
                seq += 1
            elif group is not None and group.seq == seq:
                yield group
                group = next(groups, None)
                seq += 1
            elif group and isinstance(gap := group.message, RecordingGap) and gap.first == seq:
                seq = group.seq
            elif missing and missing[0][1] < seq:
                missing.popleft()
            elif missing and missing[0][0] <= seq:
                recorded = [one.seq for one in (row, group) if one is not None]
                seq = min(missing[0][1] + 1, *recorded, MAX_COUNT)
            elif row is not None:
                raise StateError(f"{self.folder}: input {seq} is missing before {row.seq}")
            else:
                return

    def overruns(self) -> list[tuple[int, str, str]]:
        """Return ``(seq, policy, detail)`` of each overrun, which a replay cannot reproduce."""
        found = []
        for line in self.lines():
            if line.kind == "policy_failed":
                failure = msgspec.json.decode(line.body, type=PolicyFailed)
                if failure.rule == OVERRAN:
                    found.append((line.seq, failure.policy, failure.detail))
        return found

    def lines(self, parts: Sequence[Path] = ()) -> Iterator[Line]:
        """Yield every complete line of these parts of the events file, by default of all."""
        for _, line in self._placed_lines(parts):
            yield line

    def events_after(self, seq: int) -> Iterator[Recorded]:
        """Yield every complete input after ``seq``, except telemetry."""
        for recorded in self._groups(self._parts_after(seq), _own_decoder):
            if recorded.seq > seq:
                yield recorded

    def record_batches(self, parts: Sequence[Path] | None = None) -> Iterator[Any]:
        """Return the telemetry so far in batches with the columns of ``TELEMETRY_SCHEMA``.

        Rows are in the order of ``seq``, whether their part is sealed or not. ``parts``: of these
        parts; by default of all that were not thinned.
        """
        while True:
            paths = raw_parts(self.folder) if parts is None else parts
            try:
                return _record_batches([_Snapshot(path, self.meta.v) for path in paths])
            except OSError as error:
                if isinstance(error, FileNotFoundError) and parts is None:
                    continue  # it has been thinned since it was listed
                raise state_error(self.folder, "cannot be read", error) from None

    @property
    def thinned(self) -> list[About]:
        """What the thinned files stand for, oldest first: raw telemetry that is not there."""
        return [about(file.path) for file in thinned_files(self.folder)]

    @property
    def missing(self) -> str:
        """What raw telemetry is not there any more, in one line; empty if all of it is."""
        return str(merged_about(found, found[-1].every_s)) if (found := self.thinned) else ""

    def _parts_after(self, seq: int) -> list[Path]:
        """Return the parts of the events file, from the one that contains ``seq``."""
        paths = part_paths(self.folder, "events")
        first = 0
        for number, path in enumerate(paths):
            try:
                with open_regular(path) as file:
                    head = file.readline()
            except OSError as error:
                raise state_error(path, "cannot be read", error) from None
            if head.endswith(b"\n") and _decode(_line_decoder, head, f"{path}:1").seq <= seq:
                first = number
        return paths[first:]

    def _placed_lines(self, paths: Sequence[Path] = ()) -> Iterator[tuple[str, Line]]:
        paths = paths or part_paths(self.folder, "events")
        for path in paths:
            data = _read(path)
            end, _ = whole_bytes(data, "events")
            if end < len(data) and path != paths[-1]:
                raise StateError(f"{path}: the last line is cut off, and a later part exists")
            for number, text in enumerate(data[:end].splitlines(), start=1):
                place = f"{path}:{number}"
                line = _decode(_line_decoder, text, place)
                _check_text(line.body, place)
                yield place, renamed_line(line) if self.is_earlier else line

    def _groups(
        self, paths: Sequence[Path] = (), decoder: msgspec.json.Decoder[Input] = _input_decoder
    ) -> Iterator[Recorded]:
        """Yield every input that has a line, once the lines of all its outputs are complete."""
        seq = 0
        lines = self._placed_lines(paths)
        for place, line in lines:
            if line.n != 0 or line.seq <= seq:
                raise StateError(f"{place}: need an input after {seq}, was {line.seq}.{line.n}")
            seq = line.seq
            message = _decode(decoder, line.body, place)
            outputs = []
            for n, (place_out, output) in enumerate(itertools.islice(lines, line.outputs), 1):
                if (output.seq, output.n) != (seq, n):
                    raise StateError(
                        f"{place_out}: need output {seq}.{n}, was {output.seq}.{output.n}"
                    )
                outputs.append(bytes(output.body))
            if len(outputs) == line.outputs:
                yield Recorded(seq, line.ts_ns, message, tuple(outputs))


def read_epochs(root: Path) -> list[EpochRecord]:
    """Return the epochs recorded under a run's folder, oldest first; StateError without any."""
    try:
        there = stat.S_ISDIR(root.stat().st_mode)
    except (OSError, ValueError):
        there = False
    if not there:
        raise StateError(f"{root!s:.300}: no such folder: need the folder of a trajectory")
    folders = [path for path in root.iterdir() if _EPOCH.fullmatch(path.name)]
    if not folders:
        below = (path for pattern in ("*/epoch-*", "*/*/epoch-*") for path in root.glob(pattern))
        within = sorted({str(path.parent) for path in below if _EPOCH.fullmatch(path.name)})
        hint = f"; found one at {listed(within, _NAMED)}" if within else ""
        raise StateError(f"{root!s:.300}: no epoch-* in it: need the folder of a trajectory{hint}")
    # A Weaver that was killed before its meta.json was written has recorded nothing.
    found = [EpochRecord(folder) for folder in folders if (folder / META).exists()]
    return sorted(found, key=lambda record: record.meta.epoch)


class _Snapshot:
    """A part of telemetry as it is now: it may grow, or be sealed and then deleted."""

    def __init__(self, path: Path, version: int) -> None:
        try:
            self._open(path, version)
        except FileNotFoundError:
            if path.suffix == SEALED:
                raise
            self._open(path.with_suffix(SEALED), version)  # sealed since it was listed

    def _open(self, path: Path, version: int) -> None:
        self.path = path
        with open_regular(path) as file:
            self._size = os.fstat(file.fileno()).st_size
            may_vanish = version >= SEALED_FORMAT and path.suffix != SEALED
            self._file = pa.OSFile(str(path)) if may_vanish else None

    def read(self) -> bytes:
        if self._file is None:
            return _read(self.path)[: self._size]
        with self._file as file:
            data: bytes = file.read(self._size)
            return data


def _record_batches(parts: list[_Snapshot]) -> Iterator[Any]:
    for part in parts:
        rows = 0
        is_sealed, is_last = part.path.suffix == SEALED, part is parts[-1]
        found = row_groups(part.path) if is_sealed else _unsealed(part, is_last)
        while True:
            try:
                batch = next(found)
            except (StopIteration, FileNotFoundError):  # it was thinned meanwhile
                break
            except (OSError, ValueError, pa.ArrowException) as error:
                raise StateError(f"{part.path}: row {rows}: {error}") from None
            yield batch
            rows += batch.num_rows


def _unsealed(part: _Snapshot, is_last: bool) -> Iterator[Any]:
    data = part.read()
    end, torn = whole_bytes(data, "telemetry")
    if end:
        yield from telemetry_rows(pa.ipc.open_stream(data[:end]))
    if end < len(data) and not (torn and is_last):
        raise ValueError("damaged record batch before the end of the file")


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw, place: str) -> _T:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise StateError(f"{place}: {error}") from None


def _check_text(body: msgspec.Raw, place: str) -> None:
    # The line's decoder does not check the body.
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise StateError(f"{place}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise state_error(path, "cannot be read", error) from None
