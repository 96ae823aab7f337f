"""How many bytes a store may still take: nothing else on the node must run out of memory."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_RESERVE = 0.05
"""Share of each memory that stays free."""

_MEASURED_S = 0.05
_CGROUPS = Path("/sys/fs/cgroup")


class Refused(Exception):
    """The request is not carried out."""


class Room:
    """The free memory of a folder, which several threads take from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._left, self._measured_s = 0.0, float("-inf")

    def take(self, count: int) -> None:
        """Take so many bytes; Refused if they are not free."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._measured_s > _MEASURED_S:
                self._left, self._measured_s = room_bytes(self._folder), now_s
            if count > self._left:
                free = max(self._left, 0.0) / 1e6
                raise Refused(f"memory is full: {free:.0f} MB are free, but for a reserve of 5 %")
            self._left -= count


def room_bytes(folder: Path) -> float:
    """Return the bytes free beyond the reserve: of the folder, the node and its cgroups."""
    return min(free - _RESERVE * total for free, total in _memories(folder))


def _memories(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the free and all bytes of each memory that limits the folder."""
    usage = shutil.disk_usage(folder)
    yield usage.free, usage.total
    with suppress(OSError, KeyError):
        known = _table(Path("/proc/meminfo"))
        yield known["MemAvailable:"] * 1024, known["MemTotal:"] * 1024
    with suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        for group in (_CGROUPS / own, *(_CGROUPS / own).parents):
            if not group.is_relative_to(_CGROUPS):
                break
            with suppress(OSError, ValueError, KeyError):  # ValueError: without a limit
                limit = int((group / "memory.max").read_text())
                used = int((group / "memory.current").read_text())
                used -= _table(group / "memory.stat")["inactive_file"]  # is freed where need be
                yield limit - used, limit


def _table(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}
