"""How many bytes a trajectory takes, by epoch and kind of file."""

from pathlib import Path
from typing import Literal, NamedTuple

from torchloom_core.live.trajectory import thinned
from torchloom_core.live.trajectory.layout import META, epoch_folder, epochs, part_paths
from torchloom_core.live.trajectory.retention_steps import in_use

Kind = Literal["decisions", "raw telemetry", "thinned telemetry"]


class Usage(NamedTuple):
    """The files of one kind in one epoch.

    ``oldest_ns`` and ``newest_ns`` are when the first and the last of them was written or, of
    thinned telemetry, received. ``every_s`` are the intervals of thinned telemetry, 0 of deleted.
    """

    epoch: int
    in_use: bool
    kind: Kind
    files: int
    size: int
    oldest_ns: int
    newest_ns: int
    every_s: float = 0.0


def usage(root: Path) -> list[Usage]:
    """Return the kinds of files of each epoch, oldest first; a damaged thinned file is logged."""
    found: list[Usage] = []
    for epoch in epochs(root):
        folder = epoch_folder(root, epoch)
        used = in_use(folder)
        events = [path for path in (folder / META, *part_paths(folder, "events")) if path.exists()]
        kinds: tuple[tuple[Kind, list[Path]], ...] = (
            ("decisions", events),
            ("raw telemetry", thinned.raw_parts(folder)),
        )
        for kind, paths in kinds:
            stats = [path.stat() for path in paths]
            if stats:
                times = [stat.st_mtime_ns for stat in stats]
                size = sum(stat.st_size for stat in stats)
                found.append(Usage(epoch, used, kind, len(stats), size, min(times), max(times)))
        found += _thinned(folder, epoch, used=used)
    return found


def _thinned(folder: Path, epoch: int, *, used: bool) -> list[Usage]:
    of: dict[float, list[tuple[Path, thinned.About]]] = {}
    for file, about in thinned.readable(folder):
        of.setdefault(about.every_s, []).append((file.path, about))
    return [
        Usage(
            epoch,
            used,
            "thinned telemetry",
            len(files),
            sum(path.stat().st_size for path, _ in files),
            min(about.first_ns for _, about in files),
            max(about.last_ns for _, about in files),
            every_s,
        )
        for every_s, files in of.items()
    ]
