"""Save a checkpoint now, or look at those that are stored."""

import time

import msgspec
from cyclopts import App

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.checkpoint.export_command import Place, export_checkpoint
from torchloom_core.checkpoints.layout import Folder
from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders, read_manifest
from torchloom_core.cli.capability import (
    HERE,
    WAIT_S,
    AsJson,
    Connection,
    Role,
    Wait,
    console,
    propose,
)
from torchloom_core.cli.output import print_json, span
from torchloom_core.cli.progress import progress
from torchloom_core.floor.errors import CheckpointError
from torchloom_core.floor.plain_text import plain_line

checkpoint = App(name="checkpoint")

_MB = 1e6


@checkpoint.default
def save(
    group: str | None = None,
    /,
    *,
    role: Role = "",
    wait: Wait = WAIT_S,
    connection: Connection = HERE,
) -> None:
    """Save a checkpoint now, in one replica group, in those of a role, or in all.

    Workers call their save function at their next step boundary. With loom.checkpoints it is done
    when all ranks know: they save a few steps later, see torchloom checkpoint list.

    Parameters
    ----------
    group
        Replica group that saves. Default: all groups.
    """
    propose(SaveCheckpoint(group=group, role=role or msgspec.UNSET), wait, connection)


class Listed(msgspec.Struct, kw_only=True):
    """One checkpoint of ``torchloom checkpoint list --json``."""

    folder: str
    generation: int
    step: int
    run: str
    ranks: int
    bytes: int
    saved_ns: int
    problem: str = ""


@checkpoint.command(name="list")
def list_checkpoints(place: Place, /, *, json: AsJson = False) -> None:
    """List the complete checkpoints of a folder, the newest first."""
    storage = storage_at(place)
    found = []
    for folder in complete_folders(storage):
        try:
            manifest = read_manifest(storage, str(folder))
        except CheckpointError as error:
            found.append(_listed(folder, problem=str(error)))
        else:
            found.append(
                _listed(
                    folder,
                    run=manifest.run,
                    ranks=len(manifest.shards),
                    size=manifest.bytes,
                    saved_ns=manifest.saved_ns,
                )
            )
    if json:
        print_json(found)
        return
    if not found:
        raise CheckpointError(f"{place}: no complete checkpoint")
    from rich.table import Table
    from rich.text import Text

    table = Table("step", "age", "ranks", "MB", "run", "folder", box=None)
    for one in found:
        age_s = (time.time_ns() - one.saved_ns) / 1e9
        age = span(age_s) if age_s >= 0 else f"{span(-age_s)} ahead"  # another clock
        size = f"{one.bytes / _MB:.1f}" if not one.problem else "?"
        where = one.problem or one.folder
        texts = map(plain_line, (one.run or "-", where))
        table.add_row(
            str(one.step),
            age if one.saved_ns else "?",
            str(one.ranks or "?"),
            size,
            *map(Text, texts),
        )
    console().print(table)


def _listed(
    folder: Folder,
    *,
    run: str = "",
    ranks: int = 0,
    size: int = 0,
    saved_ns: int = 0,
    problem: str = "",
) -> Listed:
    return Listed(
        folder=str(folder),
        generation=folder.generation,
        step=folder.step,
        run=run,
        ranks=ranks,
        bytes=size,
        saved_ns=saved_ns,
        problem=problem,
    )


@checkpoint.command(name="verify")
def verify_checkpoints(place: Place, /) -> int:
    """Read all bytes of each complete checkpoint, and compare them with their digests.

    Exit status 1 if one is damaged, or if there is none.
    """
    storage, out, damaged = storage_at(place), console(), 0
    folders = complete_folders(storage)
    if not folders:
        raise CheckpointError(f"{place}: no complete checkpoint")
    with progress() as report:
        for folder in folders:
            try:
                opened, read = Checkpoint([storage], str(folder)), 0
                for size in opened.verify():
                    read += size
                    report(str(folder), read, max(opened.manifest.bytes, 1))
            except CheckpointError as error:
                damaged += 1
                out.print(str(error), markup=False, soft_wrap=True)
            else:
                text = f"{folder}: whole, {read / _MB:.1f} MB"
                out.print(text, markup=False, soft_wrap=True)
    return CheckpointError.exit_code if damaged else 0


checkpoint.command(export_checkpoint, name="export")
