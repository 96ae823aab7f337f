"""What retention has to do with a trajectory's files: steps by age, by need and by epoch."""

import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory import thinned
from torchloom_core.live.trajectory.layout import (
    META,
    SEALED,
    epoch_folder,
    epochs,
    part_paths,
)
from torchloom_core.live.trajectory.thinned import part_number

_INTERVALS = 60
"""A thinned file spans about so many intervals."""

_LARGEST_BYTES = 2 << 30
"""Maximum size of the files that become one."""

_HOUR_NS = 3600 * SECOND_NS
_ANY_NS = 1 << 63

_Found = tuple[int, int, Path, int]
"""First and last part, the file, and the time of its last sample."""


class Step(NamedTuple):
    """One thing to do: files of an epoch become one thinned file.

    ``thin`` raw parts, ``coarsen`` thinned files, or ``drop`` the rows of thinned files.
    """

    act: Literal["thin", "coarsen", "drop"]
    folder: Path
    first: int
    last: int
    sources: tuple[Path, ...]
    bytes: int
    every_s: float


def in_use(folder: Path) -> bool:
    """Return whether a Weaver that is running records this epoch."""
    try:
        with (folder / META).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def aged(root: Path, rules: Trajectory, now_ns: int) -> list[Step]:
    """Return the steps that are due by age, oldest first."""
    steps: list[Step] = []
    for folder in folders_of(root):
        raw_ns = now_ns - round(rules.raw_h * _HOUR_NS)
        steps += _to_thin(folder, rules.thin_s, raw_ns, partial=False)
        steps += _to_coarsen(folder, rules, now_ns - round(rules.coarse_h * _HOUR_NS))
    return steps


def early(root: Path, rules: Trajectory) -> list[Step]:
    """Return the steps that free space before their time: the least loss first, then by age."""
    folders = list(folders_of(root))
    steps = [s for f in folders for s in _to_thin(f, rules.thin_s, _ANY_NS, partial=True)]
    steps += [step for folder in folders for step in _to_coarsen(folder, rules, _ANY_NS)]
    return steps + [step for folder in folders for step in _to_drop(folder)]


def epoch_steps(root: Path, epoch: int) -> list[Step]:
    """Return the steps that drop all telemetry of one epoch; StateError if it is in use."""
    folder = epoch_folder(root, epoch)
    if not (folder / META).exists():
        known = ", ".join(map(str, epochs(root))) or "none"
        raise StateError(f"{root}: need a recorded epoch ({known}), was {epoch}")
    if in_use(folder):
        raise StateError(f"{folder}: need an epoch that has ended, was one that a Weaver records")
    parts = thinned.raw_parts(folder)
    files = [file for file, about in thinned.readable(folder) if about.every_s]
    numbers = [*map(part_number, parts), *(n for file in files for n in (file.first, file.last))]
    sources = (*(file.path for file in files), *parts)
    if not sources:
        return []
    size = sum(map(file_size, sources))
    return [Step("drop", folder, min(numbers), max(numbers), sources, size, 0.0)]


def folders_of(root: Path) -> Iterator[Path]:
    """Yield the folders of epochs that were recorded."""
    for epoch in epochs(root):
        folder = epoch_folder(root, epoch)
        if (folder / META).exists():
            yield folder


def _to_thin(folder: Path, every_s: float, before_ns: int, *, partial: bool) -> Iterator[Step]:
    """Yield the steps for parts written before a time; the last file only if it is full."""
    parts, ended = thinned.raw_parts(folder), not in_use(folder)
    closed = parts if ended else [p for p in parts if p != part_paths(folder, "telemetry")[-1]]
    written = ((part, _written_ns(part)) for part in closed)
    old = [(part_number(p), part_number(p), p, ns) for p, ns in written if ns is not None]
    due = [one for one in old if one[3] < before_ns]
    groups = _grouped(due, every_s)
    if groups and not (partial or ended or len(due) < len(old)):
        groups.pop()  # more parts are to come
    for group in groups:
        yield _step("thin", folder, group, every_s)


def _to_coarsen(folder: Path, rules: Trajectory, before_ns: int) -> Iterator[Step]:
    found = []
    for file, about in thinned.readable(folder):
        if 0 < about.every_s < rules.coarse_s and about.last_ns < before_ns:
            found.append((file.first, file.last, file.path, about.last_ns))
    for group in _grouped(found, rules.coarse_s):
        yield _step("coarsen", folder, group, rules.coarse_s)


def _to_drop(folder: Path) -> Iterator[Step]:
    for file, about in thinned.readable(folder):
        if about.every_s:
            yield _step("drop", folder, [(*file, 0)], 0.0)


def _grouped(found: Sequence[_Found], every_s: float) -> list[list[_Found]]:
    """Group consecutive files so that each group spans about :data:`_INTERVALS` intervals."""
    groups: list[list[_Found]] = []
    span_ns, size = round(_INTERVALS * every_s * SECOND_NS), 0
    for one in found:
        size += file_size(one[2])
        group = groups[-1] if groups else []
        goes_on = group and group[-1][1] + 1 == one[0] and one[3] - group[0][3] < span_ns
        if goes_on and size < _LARGEST_BYTES:
            group.append(one)
        else:
            groups.append([one])
            size = file_size(one[2])
    return groups


def _step(act: Any, folder: Path, group: Sequence[_Found], every_s: float) -> Step:
    sources = tuple(path for _, _, path, _ in group)
    size = sum(map(file_size, sources))
    return Step(act, folder, group[0][0], group[-1][1], sources, size, every_s)


def estimate(step: Step) -> int:
    """Return about how many bytes are left of a step's files."""
    if step.act == "drop":
        return 4096
    if step.act == "thin":
        # A value a second takes some 4 bytes, an interval some 25.
        return round(step.bytes * min(1.0, 7.0 / step.every_s))
    return round(step.bytes * thinned.about(step.sources[0]).every_s / step.every_s)


def _written_ns(path: Path) -> int | None:
    """Return when the last batch of a part was received or the part written; None: damaged."""
    try:
        if path.suffix != SEALED:
            return path.stat().st_mtime_ns
        groups = pq.read_metadata(path)
        column = groups.schema.names.index("ts_recv_ns")
        return int(groups.row_group(groups.num_row_groups - 1).column(column).statistics.max)
    except FileNotFoundError:  # it is being sealed: the next pass looks at it
        return _ANY_NS
    except (OSError, ValueError, IndexError, AttributeError, pa.ArrowException) as error:
        thinned.warn_damaged(path, str(error))
        return None


def file_size(path: Path) -> int:
    """Return the bytes of a file, 0 if it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
