"""One Weaver per state folder: a locked file, which also names the process with the lock."""

import asyncio
import fcntl
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.live.transport.owner import Owner
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_FILE = "weaver.lock"
_POLL_S = 0.1
_RETRY_S = 60.0


class FolderLock:
    """The lock on a state folder; the operating system frees it when the process ends.

    ``owner`` is this process, with the id of the folder; ``held`` whether it has the lock.
    StateError if the file cannot be written.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir.absolute() / _FILE
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"{self._path}: cannot be written: {error.strerror}") from None
        self.held = False
        holder = self.holder()
        self.owner = Owner(
            host=socket.gethostname(),
            pid=os.getpid(),
            folder=str(self._path.parent),
            folder_id=holder.folder_id if holder else secrets.token_hex(8),
            since_ns=time.time_ns(),
        )

    def holder(self) -> Owner | None:
        """Return the process that had the lock last, or None."""
        with suppress(OSError, *UNREADABLE):
            return msgspec.json.decode(self._path.read_bytes(), type=Owner)
        return None

    async def take(self, patience_s: float) -> bool:
        """Take the lock, waiting ``patience_s`` at most; return False if another process has it.

        StateError if the file cannot be written.
        """
        deadline = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def take_later(self) -> None:
        """Take the lock once the process that has it has ended."""
        while not await self.take(_RETRY_S):
            pass

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)
        self.held = False

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # some network file systems have no locks
            _log.warning("%s: cannot be locked: %s", self._path, error.strerror)
            return True
        self.held = True
        holder = self.holder()
        if holder is not None:  # written meanwhile by the one that had the lock
            self.owner = msgspec.structs.replace(self.owner, folder_id=holder.folder_id)
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, msgspec.json.encode(self.owner), 0)
        except OSError as error:
            raise StateError(f"{self._path}: cannot be written: {error.strerror}") from None
        return True
