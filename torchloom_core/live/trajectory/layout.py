"""The files of a trajectory, and the fields of their lines and rows.

::

    <state>/trajectory/<run>/         the root
        epoch-28004523/               one process of the Weaver
            meta.json                 a Meta
            events-000001.jsonl       Lines: every input but telemetry, and every output
            telemetry-000001.parquet  one row per telemetry batch: a sealed part
            telemetry-000002.arrow    the messages as they came, an Arrow IPC stream, not yet sealed

``seq`` counts the kernel's inputs from 1, telemetry included: both kinds of file merged by
``seq`` are the exact input order. The parts of a file are numbered; only the last part of a
kind can end in a torn record.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from torchloom_core.floor.errors import StateError
from torchloom_core.wire.limits import MAX_COUNT, Count, Int64, Name

FORMAT = 4
"""Version of this layout; it is raised when an old reader would misread it."""

NAMES_FORMAT = 2
"""The first version with the present names."""

SEALED_FORMAT = 3
"""The first version whose parts may be sealed."""

META = "meta.json"

PartKind = Literal["events", "telemetry"]

SEALED = ".parquet"
"""Suffix of a part of telemetry that was rewritten as Parquet."""

_SUFFIX: dict[PartKind, str] = {"events": ".jsonl", "telemetry": ".arrow"}

UNSEALED = "telemetry-*.arrow"
"""Parts of telemetry that are not sealed, or were sealed just before a kill."""

NAME = pa.dictionary(pa.int32(), pa.string())

MESSAGE_SCHEMA = pa.schema(
    [("seq", pa.int64()), ("ts_recv_ns", pa.int64()), ("message", pa.binary())]
)
"""A row of a part that is not sealed: the msgpack of a batch. Up to format 3 it had the columns of
:data:`TELEMETRY_SCHEMA`."""

TELEMETRY_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts_recv_ns", pa.int64()),
        ("run", NAME),
        ("worker", NAME),
        ("incarnation", pa.int64()),
        ("batch_seq", pa.int64()),
        ("state", NAME),
        ("step", pa.int64()),
        ("progress_age_s", pa.float64()),
        ("dropped", pa.int64()),
        ("metrics", pa.list_(NAME)),
        ("ts_ns", pa.list_(pa.int64())),
        ("values", pa.list_(pa.float64())),
        ("v", pa.int64()),
    ]
)
"""A telemetry row: the batch as received, ``values`` sample by sample, ``batch_seq`` its number."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``: run, epoch, versions, and the config without secrets."""

    run: Name
    epoch: Count
    started_ns: Int64
    torchloom: str
    config: dict[str, Any]
    plugins: dict[str, str]
    v: Count = FORMAT


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an events file: an input, or one of its outputs.

    ``seq`` numbers the inputs of the epoch. ``n`` is 0 for the input itself, 1 and up for its
    ``outputs``: the record is complete once ``n`` reaches their number. ``ts_ns`` is when the input
    was received, nanoseconds since the Unix epoch. ``kind`` is the message's tag, ``body`` the
    message as JSON; ``id``, ``cause`` and ``worker`` are those of
    :func:`~torchloom_core.live.trajectory.writer.links_of`.
    """

    seq: Count
    n: Count
    outputs: Count
    ts_ns: Int64
    io: Literal["in", "out"]
    kind: str
    id: str
    cause: str
    worker: str
    body: msgspec.Raw


def run_folder(state: Path, run: str) -> Path:
    """Return the root of a run's trajectory under the Weaver's state folder."""
    return state / "trajectory" / run


def epoch_folder(root: Path, epoch: int) -> Path:
    """Return the folder of one epoch."""
    return root / f"epoch-{epoch:06d}"


def epochs(root: Path) -> list[int]:
    """Return the epochs that have a folder, lowest first, if the number fits a message."""
    names = (path.name.partition("-")[2] for path in root.glob("epoch-*"))
    numbers = (int(name) for name in names if name.isdecimal())
    return sorted(number for number in numbers if number < MAX_COUNT)


def newest_epoch(root: Path) -> int:
    """Return the highest epoch that has a folder, 0 if none has."""
    return max(epochs(root), default=0)


def part_path(folder: Path, kind: PartKind, number: int) -> Path:
    """Return the path of a file's ``number``-th part, from 1."""
    return folder / f"{kind}-{number:06d}{_SUFFIX[kind]}"


def part_paths(folder: Path, kind: PartKind) -> list[Path]:
    """Return the parts that exist, oldest first; of a part that is just being sealed, one file."""
    found = {path.stem: path for path in folder.glob(f"{kind}-*{_SUFFIX[kind]}")}
    if kind == "telemetry":
        found |= {path.stem: path for path in folder.glob(f"{kind}-*{SEALED}")}
    return [path for _, path in sorted(found.items())]


def state_error(path: Path, failure: str, error: OSError) -> StateError:
    """Return an error with the place, the failure and its reason in one line."""
    return StateError(f"{error.filename or path}: {failure}: {error.strerror}")
