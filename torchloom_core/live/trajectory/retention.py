"""Thin a trajectory's old telemetry by age and by a budget of bytes; decisions are kept for good.

A pass is safe beside a running Weaver: it never touches the newest telemetry part of an epoch in
use, and a part is deleted only once the file that stands for it is on disk. The Weaver runs passes
in a process of low priority, ``torchloom trajectory prune`` in its own.
"""

import fcntl
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from torchloom_core.config.trajectory import LOW_SHARE, Trajectory
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory import thinned
from torchloom_core.live.trajectory.layout import (
    part_paths,
    state_error,
)
from torchloom_core.live.trajectory.reader import EpochRecord
from torchloom_core.live.trajectory.retention_steps import (
    Step,
    aged,
    early,
    estimate,
    file_size,
    folders_of,
)
from torchloom_core.live.trajectory.tables import long_samples
from torchloom_core.live.trajectory.thinned import About

log = logging.getLogger(__name__)


_GIB = 1 << 30


LOCK = "retention.lock"


class Pass(NamedTuple):
    """What a pass did: its steps, the trajectory's bytes before and after, and what it lacks."""

    steps: int
    before: int
    after: int
    lacks: str = ""


def prune(
    root: Path,
    rules: Trajectory,
    *,
    now_ns: int | None = None,
    did: Callable[[Step, int], None] = lambda step, after: None,
) -> Pass:
    """Thin by age, then as far as the budget and the free space of the disk need it.

    ``did`` is called after each step, with the bytes that are left of it. A damaged file is left
    as it is, and logged. StateError if another pass runs.
    """
    done, damaged = 0, set[Path]()

    def attempt(step: Step) -> None:
        nonlocal done
        try:
            did(step, carry_out(step))
            done += 1
        except StateError as error:
            log.warning("not thinned: %s", error)
            damaged.update(step.sources)

    with locked(root):
        before, lacks = size_of(root), ""
        for folder in folders_of(root):
            _finish(folder)
        for step in aged(root, rules, time.time_ns() if now_ns is None else now_ns):
            attempt(step)
        while lacks := _lacks(root, rules):
            possible = (s for s in early(root, rules) if damaged.isdisjoint(s.sources))
            if (next_step := next(possible, None)) is None:
                break
            attempt(next_step)
        return Pass(done, before, size_of(root), lacks)


def planned(root: Path, rules: Trajectory, now_ns: int | None = None) -> list[tuple[Step, int]]:
    """Return what :func:`prune` would do, each step with an estimate of the bytes left of it."""
    due = aged(root, rules, time.time_ns() if now_ns is None else now_ns)
    steps = [(step, estimate(step)) for step in due]
    over = _over(root, rules) - sum(step.bytes - left for step, left in steps)
    for step in early(root, rules) if over > 0 else ():
        if over > 0 and not any(set(step.sources) & set(other.sources) for other, _ in steps):
            left = estimate(step)
            steps.append((step, left))
            over -= step.bytes - left
    return steps


def carry_out(step: Step) -> int:
    """Write the file that stands for the step's files, then delete these; return its bytes."""
    found: list[About] = []
    thinner = thinned.Thinner(step.every_s or 1.0)
    try:
        for path in step.sources:
            if path.name.startswith("thinned"):
                found.append(thinned.about(path))
                for rows in thinned.tables(path) if step.every_s else ():
                    thinner.add_aggregates(rows)
            else:
                found += _thin_part(step, path, thinner)
        if not found:
            return 0
        about = thinned.merged_about(found, step.every_s)
        path = thinned.write(step.folder, step.first, step.last, about, thinner.table())
    except OSError as error:
        raise state_error(step.folder, "cannot be thinned", error) from None
    _finish(step.folder)
    return file_size(path)


def _thin_part(step: Step, path: Path, thinner: thinned.Thinner) -> Iterator[About]:
    now = [one for one in part_paths(step.folder, "telemetry") if one.stem == path.stem]
    for rows in EpochRecord(step.folder).record_batches(now):  # it may have been sealed
        if not rows.num_rows:
            continue
        if step.every_s:
            thinner.add_samples(long_samples(rows))
        seq, ts_ns = (pc.min_max(rows[name]).as_py() for name in ("seq", "ts_recv_ns"))
        yield About(
            first_seq=seq["min"],
            last_seq=seq["max"],
            first_ns=ts_ns["min"],
            last_ns=ts_ns["max"],
            batches=rows.num_rows,
            every_s=step.every_s,
        )


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file_size(path) for path in folder.rglob("*") if path.is_file())


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the lock of the trajectory's passes; StateError if another pass runs."""
    try:
        with (root / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateError(f"{root}: another process prunes it: try again later") from None
            yield
    except OSError as error:
        raise state_error(root, "cannot be pruned", error) from None


def _finish(folder: Path) -> None:
    """Delete the files that a thinned file stands for, and drafts of a killed pass."""
    for draft in folder.glob("thinned-*.new"):
        draft.unlink(missing_ok=True)
    kept = [file for file, _ in thinned.readable(folder)]  # a damaged one stands for nothing
    for file in thinned.all_thinned(folder):
        if any(one.path != file.path and one.covers(file.first, file.last) for one in kept):
            file.path.unlink(missing_ok=True)
    for part in folder.glob("telemetry-*"):
        number = part.name.partition("-")[2].partition(".")[0]
        covered = (file.covers(int(number), int(number)) for file in kept)
        if number.isdecimal() and any(covered):
            part.unlink(missing_ok=True)


def _over(root: Path, rules: Trajectory) -> float:
    """Return how many bytes too many there are, by the budget and the free space."""
    budget = size_of(root) - rules.budget_gib * _GIB if rules.budget_gib else 0.0
    return max(budget, low_bytes(root, rules) - shutil.disk_usage(root).free)


def low_bytes(folder: Path, rules: Trajectory) -> float:
    """Return the free space below which telemetry is thinned early: at most 5 % of the disk."""
    return min(rules.low_gib * _GIB, LOW_SHARE * shutil.disk_usage(folder).total)


def _lacks(root: Path, rules: Trajectory) -> str:
    size, free = size_of(root), shutil.disk_usage(root).free
    if rules.budget_gib and size > rules.budget_gib * _GIB:
        return f"{size / _GIB:.2f} GiB, budget_gib is {rules.budget_gib:g}"
    low = low_bytes(root, rules)
    return f"{free / _GIB:.2f} GiB free, want {low / _GIB:.2f}" if free < low else ""
