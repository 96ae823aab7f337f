"""Convert a checkpoint to a format that other programs read: ``torchloom checkpoint export``.

An entry point in the group ``torchloom.checkpoint_exports`` names a format and the function that
writes it: of a :class:`~torchloom_core.checkpoints.stored.Checkpoint`, an empty folder, and a
function that takes the bytes of each piece that was read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.cli.capability import console
from torchloom_core.cli.progress import progress
from torchloom_core.floor.atomic_folder import AtomicFolder
from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.errors import CheckpointError

Place = Annotated[str, Parameter(help="Folder of the checkpoints, as given to the script.")]
GROUP = "torchloom.checkpoint_exports"

_Export = Callable[[Checkpoint, Path, Callable[[int], None]], None]
_MB = 1e6


def export_checkpoint(
    place: Place,
    out: Path,
    /,
    *,
    step: int | None = None,
    format: str = "safetensors",
) -> None:
    """Convert a complete checkpoint, each byte of which is compared with its digest.

    Parameters
    ----------
    out
        Folder to write; it must not exist.
    step
        Step of the checkpoint. Default: the newest.
    format
        safetensors: the weights of the models, whole. dcp: weights and optimizer states, as
        torch.distributed.checkpoint.load reads them.
    """
    if out.exists():
        raise CheckpointError(f"{out}: need a folder that does not exist")
    export = _format_named(format)
    storage = storage_at(place)
    found = [one for one in complete_folders(storage) if step in (None, one.step)]
    if not found:
        of_step = "" if step is None else f" at step {step}"
        raise CheckpointError(f"{place}: no complete checkpoint{of_step}")
    checkpoint = Checkpoint([storage], str(found[0]))
    draft = AtomicFolder(out)
    try:
        with progress() as report:
            read = 0

            def count(size: int) -> None:
                nonlocal read
                read += size
                report(f"step {found[0].step}", read, max(checkpoint.manifest.bytes, read, 1))

            try:
                export(checkpoint, draft.folder, count)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                where = f"{storage.name}/{checkpoint.folder}"
                raise CheckpointError(f"{where}: cannot be exported: {error!r}") from error
        draft.put_in_place(replace=False)
    finally:
        draft.discard()
    text = f"{out}: step {found[0].step} as {format}, {read / _MB:.1f} MB"
    console().print(text, markup=False, soft_wrap=True)


def _format_named(name: str) -> _Export:
    points = {point.name: point for point in entry_points(GROUP)}
    if name not in points:
        raise CheckpointError(f"--format: need {' or '.join(sorted(points))}, was {name!r}")
    try:
        export: _Export = points[name].load()
    except ModuleNotFoundError as error:
        text = f'{error.name} is not installed: pip install "torchloom[torch]"'
        raise CheckpointError(f"--format {name}: {text}") from None
    return export
