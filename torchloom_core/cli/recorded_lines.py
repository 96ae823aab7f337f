"""The lines of a trajectory, of all lives of its Weaver: what there is, and what is to come."""

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.loading import load
from torchloom_core.errors import StateError
from torchloom_core.files import open_regular
from torchloom_core.wire.codec import UNREADABLE

# The reader brings pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.trajectory.layout import Line

_POLL_S = 0.3


class Place(NamedTuple):
    """Where a line stands among all lives' lines."""

    epoch: int
    seq: int
    n: int


def trajectory_root(root: Path | None, config: Path | None) -> Path:
    """Return the trajectory that is named, else that of the config's run."""
    if root is not None:
        return root
    from torchloom_core.trajectory.layout import run_folder

    settings = load(config)
    return run_folder(Path(settings.weaver.state_dir), settings.run.name)


def recorded(folder: Path) -> Iterator[tuple[Place, "Line"]]:
    """Yield every whole line of all lives, the oldest first."""
    from torchloom_core.trajectory.reader import lives

    for life in lives(folder):
        for line in life.lines():
            yield Place(life.meta.epoch, line.seq, line.n), line


def followed(folder: Path) -> Iterator[tuple[Place, "Line"]]:
    """Yield every whole line of all lives, then those that are added, for ever."""
    from torchloom_core.trajectory.layout import epochs, life_folder, part_paths

    read: dict[Path, int] = {}
    while True:
        for epoch in epochs(folder):
            for part in part_paths(life_folder(folder, epoch), "events"):
                for line in _new_lines(part, read):
                    yield Place(epoch, line.seq, line.n), line
        time.sleep(_POLL_S)


def local_time(ts_ns: int) -> str:
    """Return a moment on this machine's clock, to the millisecond."""
    when = datetime.fromtimestamp(ts_ns / SECOND_NS, UTC).astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03}"


def _new_lines(part: Path, read: dict[Path, int]) -> Iterable["Line"]:
    from torchloom_core.trajectory.layout import Line

    with open_regular(part) as file:
        file.seek(read.get(part, 0))
        whole, newline, _ = file.read().rpartition(b"\n")
    read[part] = read.get(part, 0) + len(whole) + len(newline)
    try:
        return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]
    except UNREADABLE as error:
        raise StateError(f"{part}: {error}") from None
