"""Rewrite complete parts of telemetry as Parquet, in a process that the Weaver starts.

A part is written as an Arrow stream, which a kill cannot damage; as Parquet it takes a third of
the bytes or less. Rows, columns and their order are the same, bit for bit.

``python -m torchloom_core.live.trajectory.sealing PART ...`` seals these parts.
"""

import fcntl
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from torchloom_core.live.trajectory import sealed
from torchloom_core.live.trajectory.layout import SEALED
from torchloom_core.live.transport.detached_process import (
    has_ended,
    lower_priority,
    start_detached,
)

_SMALLEST_BYTES = 1 << 16
"""A smaller part would not be smaller as Parquet."""

_PARTS_AT_ONCE = 1000
"""Bounds a command line."""

_log = logging.getLogger(__name__)


class Sealer:
    """Seals parts in a process of low priority, which outlives the Weaver."""

    def __init__(self, root: Path) -> None:
        self._output = root / "sealing.log"
        self._waiting: list[Path] = []
        self._process = 0

    def add(self, part: Path) -> None:
        """Seal this part, to which nothing will be appended, now or with the next one."""
        with suppress(FileNotFoundError):  # retention is another process
            if part.stat().st_size >= _SMALLEST_BYTES:
                self._waiting.append(part)
        if not self._process or has_ended(self._process):
            self._start()

    def close(self) -> None:
        """Leave what was added to a process; what that does not do, the next Weaver does."""
        self._start()

    def _start(self) -> None:
        while parts := self._waiting[:_PARTS_AT_ONCE]:
            command = [sys.executable, "-m", __name__, *map(str, parts)]
            try:
                self._process = start_detached(command, self._output)
                lower_priority(self._process)
            except OSError as error:
                _log.warning("parts of %s are not sealed: %s", parts[0].parent, error.strerror)
                return
            self._waiting = self._waiting[_PARTS_AT_ONCE:]


def seal(part: Path) -> None:
    """Replace an Arrow part by its Parquet file, unless another process does it.

    OSError, ValueError or ArrowException if it is damaged or the disk is full: it remains.
    """
    fresh = part.with_suffix(f"{SEALED}.new")
    try:
        with part.open("rb") as file:
            _lock(file)
            sealed.write(file, fresh)
            fresh.replace(part.with_suffix(SEALED))
            part.unlink()
    except (FileNotFoundError, BlockingIOError):
        return  # another process has sealed it, or does so now
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return


def main() -> None:
    """Seal the parts that the command line names."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for part in sys.argv[1:]:
        try:
            seal(Path(part))
        except (OSError, ValueError, pa.ArrowException) as error:
            _log.warning("%s: not sealed: %s", part, error)


if __name__ == "__main__":
    main()
