"""``torchloom trajectory du|prune|export``: the space of a run's records."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from torchloom_core.cli.options import AsJson, ConfigPath
from torchloom_core.cli.output import console, print_json, span, warn
from torchloom_core.cli.recorded_lines import Root, trajectory_root
from torchloom_core.config.loading import load
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.clock import SECOND_NS

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.live.trajectory.retention_steps import Step

_DAY_S = 86_400.0


def du(root: Root = None, /, *, json: AsJson = False, config: ConfigPath = None) -> None:
    """Show how many bytes a run's records take, by epoch, kind and age."""
    from torchloom_core.live.trajectory.usage import usage

    found = usage(existing_root(root, config))
    if json:
        print_json([one._asdict() for one in found])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("epoch")
    table.add_column("kind")
    for name in ("files", "size", "oldest", "newest"):
        table.add_column(name, justify="right")
    now_ns = time.time_ns()
    for one in found:
        kind = f"{one.kind}, {one.every_s:g} s" if one.every_s else one.kind
        if one.kind.startswith("thinned") and not one.every_s:
            kind = "deleted telemetry"
        epoch = f"{one.epoch} in use" if one.in_use else str(one.epoch)
        ages = (age((now_ns - ns) / SECOND_NS) for ns in (one.oldest_ns, one.newest_ns))
        table.add_row(epoch, kind, str(one.files), size_text(one.size), *ages)
    table.add_section()
    files, size = sum(one.files for one in found), sum(one.size for one in found)
    table.add_row("all", "", str(files), size_text(size))
    console().print(table)


def prune(
    root: Root = None,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    epoch: int | None = None,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Thin old telemetry now, by the rules of [trajectory] or their defaults.

    Decisions are kept. It is safe beside a running Weaver, whose newest telemetry is not touched.

    Parameters
    ----------
    dry_run
        Print what would be done, and do nothing.
    epoch
        Drop all telemetry of this epoch instead, raw and thinned. Refused while a Weaver records
        it.
    """
    from torchloom_core.live.trajectory.retention import carry_out, locked, planned, prune
    from torchloom_core.live.trajectory.retention_steps import epoch_steps, estimate

    folder = existing_root(root, config)
    rules = load(config).trajectory or Trajectory()
    steps: list[tuple[Step, int]] = []
    lacks = ""
    if epoch is not None:
        due = epoch_steps(folder, epoch)
        if dry_run:
            steps = [(step, estimate(step)) for step in due]
        else:
            with locked(folder):
                steps = [(step, carry_out(step)) for step in due]
    elif dry_run:
        steps = planned(folder, rules)
    else:
        lacks = prune(folder, rules, did=lambda step, left: steps.append((step, left))).lacks
    if json:
        print_json([_described(step, left) for step, left in steps])
    else:
        _print(steps, dry_run=dry_run)
    if lacks:
        warn(f"nothing is left to thin: the trajectory has {lacks}")


def existing_root(root: Path | None, config: Path | None) -> Path:
    """Return the trajectory's folder; StateError if it is not one."""
    from torchloom_core.live.trajectory.reader import read_epochs

    folder = trajectory_root(root, config)
    read_epochs(folder)
    return folder


def size_text(size: float) -> str:
    """Return bytes in a few characters."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def age(seconds: float) -> str:
    """Return an age in a few characters."""
    return f"{seconds / _DAY_S:.0f}d" if seconds >= 3 * _DAY_S else span(max(seconds, 0.0))


def _described(step: "Step", left: int) -> dict[str, object]:
    epoch = int(step.folder.name.partition("-")[2])
    return {
        "epoch": epoch,
        "act": step.act,
        "first": step.first,
        "last": step.last,
        "every_s": step.every_s,
        "bytes": step.bytes,
        "left": left,
    }


def _print(steps: "list[tuple[Step, int]]", *, dry_run: bool) -> None:
    about, would = ("about ", "would be ") if dry_run else ("", "")
    words = {"thin": "thinned", "coarsen": "thinned", "drop": "deleted"}
    for step, left in steps:
        to = f" to {step.every_s:g} s" if step.every_s else ""
        console().print(
            f"{step.folder.name}: telemetry parts {step.first} to {step.last} "
            f"{would}{words[step.act]}{to}: {size_text(step.bytes)}, then {about}{size_text(left)}",
            markup=False,
        )
    freed = sum(step.bytes - left for step, left in steps)
    text = f"{would}freed: {about}{size_text(max(freed, 0))}" if steps else "nothing to thin"
    console().print(text)


def export(
    out: str, root: Root = None, /, *, json: AsJson = False, config: ConfigPath = None
) -> None:
    """Export the trajectory as Parquet, a file per part; what is there already is not written.

    Parameters
    ----------
    out
        Folder, or a URL that fsspec knows, such as s3://bucket/run-7.
    """
    from torchloom_core.live.trajectory.export import export

    written = size = 0
    for name, count in export(trajectory_root(root, config), out):
        written, size = written + 1, size + count
        if json:
            print_json({"file": name, "bytes": count})
        else:
            console().print(f"wrote {out.rstrip('/')}/{name}", markup=False)
    if not json:
        files = "1 file" if written == 1 else f"{written} files"
        console().print(f"{files}, {size_text(size)}" if written else "nothing new to export")
