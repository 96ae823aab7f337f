"""Where checkpoints are stored: folders of files, each written whole and once."""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from torchloom_core.checkpoints.installed import STORAGES, installed

_PART = ".part"
_LOCK = ".saving"
_LONGEST_OWNER = 256
_BLOCK = 4096


class Storage(Protocol):
    """A place of folders. All methods raise OSError; names are ``<folder>/<file>``."""

    name: str
    """What the user calls it: a path or a URL."""

    def folders(self) -> list[str]:
        """Return the names of the folders, in any order; none if the place does not exist."""

    def files(self, folder: str) -> list[str]:
        """Return the names of a folder's files; none if it does not exist."""

    def open(self, name: str) -> BinaryIO:
        """Open a file to read; it can seek."""

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file that does not exist: afterwards it is there whole, also after a crash."""

    def remove(self, folder: str) -> None:
        """Remove a folder."""

    def lock(self, owner: str) -> str:
        """Become the one that saves here, until this process ends; return who is instead, or "".

        Where a storage has no locks it is always granted.
        """

    def unlock(self) -> None:
        """Let another process save here."""


class LocalFolder:
    """A folder of this machine, or a shared file system."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.name = str(path)
        self._lock = -1

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        with suppress(FileNotFoundError):
            return [
                entry.name
                for entry in os.scandir(self.path)
                if entry.is_dir() and not entry.name.startswith(".")
            ]
        return []

    def files(self, folder: str) -> list[str]:
        """Return the names of a folder's files."""
        with suppress(FileNotFoundError):
            return [
                entry.name
                for entry in os.scandir(self.path / folder)
                if entry.is_file() and not entry.name.endswith(_PART)
            ]
        return []

    def open(self, name: str) -> BinaryIO:
        """Open a file to read; a pipe or a device is none."""
        handle = os.open(self.path / name, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", str(self.path / name))
        return os.fdopen(handle, "rb")

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write and sync a file under another name, then rename it and sync its folder."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + _PART)
        try:
            with part.open("wb", buffering=0) as file:
                _write(file.fileno(), parts)
                os.fsync(file.fileno())
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        for folder in (path.parent, self.path):
            _sync(folder)

    def remove(self, folder: str) -> None:
        """Remove a folder: it is moved out of sight first, so that no half of one is seen."""
        for left_over in self.path.glob(".*.removed"):  # of a process that was killed here
            shutil.rmtree(left_over, ignore_errors=True)
        away = self.path / f".{folder}.removed"
        (self.path / folder).rename(away)
        with suppress(FileNotFoundError):  # another process may remove it as a left-over
            shutil.rmtree(away)

    def lock(self, owner: str) -> str:
        """Lock a file that names the owner; the lock ends with the process, however it ends."""
        if self._lock >= 0:
            return ""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            there = os.pread(handle, _LONGEST_OWNER, 0).decode(errors="replace")
            os.close(handle)
            return there or "another process"
        except OSError:  # a file system without locks
            os.close(handle)
            return ""
        self._lock = handle
        with suppress(OSError):  # a full disk: it is locked without a name
            os.ftruncate(handle, 0)
            os.pwrite(handle, owner.encode()[:_LONGEST_OWNER], 0)
        return ""

    def unlock(self) -> None:
        """Let another process save here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _write(handle: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write all, past the page cache as far as the file system can.

    A copy into the cache would take a core from training, and push out what training reads.
    """
    is_direct = _set_direct(handle, on=True)
    for data in parts:
        left = memoryview(data)
        while len(left):
            if is_direct and len(left) % _BLOCK:
                is_direct = _set_direct(handle, on=False)
            try:
                left = left[os.write(handle, left) :]
            except OSError as error:
                if not is_direct or error.errno != errno.EINVAL:
                    raise
                is_direct = _set_direct(handle, on=False)


def _set_direct(handle: int, *, on: bool) -> bool:
    """Write past the page cache from now on, or not; return whether it is so."""
    direct = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(handle, fcntl.F_GETFL) & ~direct
    with suppress(OSError):
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | direct if on else flags)
        return on and direct != 0
    return False


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def storage_at(place: str) -> Storage:
    """Return the storage of a path or a URL; CheckpointError if it cannot be."""
    path = place.removeprefix("file://")
    if "://" not in path:
        return LocalFolder(Path(path))
    found: Storage = installed(STORAGES, path.partition("://")[0], "url")(place)
    return found
