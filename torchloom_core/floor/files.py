"""Write files atomically, and files with secrets for their owner only.

Also read files from a folder of others, which may contain pipes and devices.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import IO

from torchloom_core.floor.errors import StateError, TorchloomError

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_ROOM_BYTES = 1 << 20


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or the target of a link, to read bytes.

    Raises OSError if it cannot be read, or is a pipe or a device, which might block.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def refuse_unwritable(path: Path, error: type[TorchloomError]) -> None:
    """Raise the error if nothing can be created at ``path``: a check before long work."""
    place = path.absolute().parent
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise error(f"{path}: cannot be written: need a folder, was a file: {place}")
    if not os.access(place, os.W_OK | os.X_OK):
        raise error(f"{path}: cannot be written: no permission to write to {place}")


def refuse_picture(path: Path, error: type[TorchloomError]) -> None:
    """Raise the error if no picture can be created at ``path``; see refuse_unwritable."""
    if path.suffix not in {".png", ".svg"}:
        raise error(f"{path}: need a file .png or .svg, was {path.suffix or 'neither'}")
    refuse_unwritable(path, error)


def has_room(folder: Path) -> bool:
    """Return whether a file of one MiB can be written to a folder; it is removed at once."""
    probe = folder / ".room"
    try:
        probe.write_bytes(bytes(_ROOM_BYTES))
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return True


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can enter, and return it; StateError if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_PRIVATE_FOLDER)
    except OSError as error:
        raise StateError(f"state folder {path}: cannot be written: {error.strerror}") from None
    return path


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only; StateError if it cannot be."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, and its folder if necessary; StateError if it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as file:
            file.write(data)
            file.flush()
            os.replace(part, path)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _locked(part: Path) -> Iterator[BufferedWriter]:
    """Open an empty file that no other process writes to meanwhile, and remove it if it remains.

    A file whose writer was killed is reused: the lock on it ended with its process.
    """
    try:
        while True:
            with part.open("ab") as file:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not _is_at(part, file):  # the process with the lock has moved it
                    continue
                file.truncate(0)
                yield file
                return
    finally:  # an interrupt may have come between any two steps
        _remove_unless_locked(part)


def _remove_unless_locked(part: Path) -> None:
    """Remove a file that was not moved, unless another process writes to it by now."""
    with suppress(OSError), part.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            pass  # the file system has no locks
        if _is_at(part, file):
            part.unlink()


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
