"""Select lines of a trajectory, of all its Weaver processes, and follow new ones."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
from cyclopts import Parameter

from torchloom_core.config.loading import load
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import open_regular
from torchloom_core.wire.codec import UNREADABLE

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.live.trajectory.layout import Line

_POLL_S = 0.3

Root = Annotated[Path | None, Parameter(help="Folder of a trajectory. Default: that of this run.")]

T = TypeVar("T")


class Place(NamedTuple):
    """Position of a line in a trajectory, ordered in time."""

    epoch: int
    seq: int
    n: int


def trajectory_root(root: Path | None, config: Path | None) -> Path:
    """Return the given trajectory, else that of the config's run."""
    if root is not None:
        return root
    from torchloom_core.live.trajectory.layout import run_folder

    settings = load(config)
    return run_folder(Path(settings.weaver.state_dir), settings.run.name)


def selected(
    folder: Path, select: Callable[["Line"], T | None], last: int | None, follow: bool
) -> Iterator[tuple[Place, "Line", T]]:
    """Yield the lines for which ``select`` returns not None, with what it returns.

    These are the ``last`` ones, or all, the oldest first, and then new ones if ``follow``.
    """
    printed = Place(0, 0, 0)
    recent: deque[tuple[Place, Line, T]] = deque(maxlen=last)
    for place, line in _recorded(folder):
        printed, found = place, select(line)
        if found is not None:
            recent.append((place, line, found))
    yield from recent
    for place, line in _followed(folder) if follow else ():
        found = select(line)
        if place > printed and found is not None:
            yield place, line, found


def _recorded(folder: Path) -> Iterator[tuple[Place, "Line"]]:
    """Yield every complete line of all epochs, the oldest first."""
    from torchloom_core.live.trajectory.reader import read_epochs

    for record in read_epochs(folder):
        for line in record.lines():
            yield Place(record.meta.epoch, line.seq, line.n), line


def _followed(folder: Path) -> Iterator[tuple[Place, "Line"]]:
    """Yield every complete line of all epochs, then new lines, for ever."""
    from torchloom_core.live.trajectory.layout import epoch_folder, epochs, part_paths

    read: dict[Path, int] = {}
    while True:
        for epoch in epochs(folder):
            for part in part_paths(epoch_folder(folder, epoch), "events"):
                for line in _new_lines(part, read):
                    yield Place(epoch, line.seq, line.n), line
        time.sleep(_POLL_S)


def local_time(ts_ns: int) -> str:
    """Return a timestamp in local time, to the millisecond."""
    when = datetime.fromtimestamp(ts_ns / SECOND_NS, UTC).astimezone()
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03}"


def _new_lines(part: Path, read: dict[Path, int]) -> Iterable["Line"]:
    from torchloom_core.live.trajectory.layout import Line

    with open_regular(part) as file:
        file.seek(read.get(part, 0))
        whole, newline, _ = file.read().rpartition(b"\n")
    read[part] = read.get(part, 0) + len(whole) + len(newline)
    try:
        return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]
    except UNREADABLE as error:
        raise StateError(f"{part}: {error}") from None
