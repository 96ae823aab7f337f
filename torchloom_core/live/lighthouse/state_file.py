"""The state that outlives a lighthouse's process, in small files that are replaced atomically.

The state file is on disk before a new quorum is answered to any member. The file ``.last`` beside
it has the last answer to members: the next process needs it only if this one is killed while it
answers them, so a power cut may lose it. The lighthouse that serves has the lock file, which
contains its pid; another lighthouse waits for it as a standby.
"""

import asyncio
import errno
import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import LighthouseError, StateError
from torchloom_core.floor.files import write_private, write_whole
from torchloom_core.live.lighthouse.membership import SavedState
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_2026_S = 1_767_225_600
_FORMAT = 1
_POLL_S = 0.1
_PRIVATE_FILE = 0o600
_LONGEST_PID = 16


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded first: a later version may have other fields."""

    run: str
    v: int = _FORMAT


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    state: SavedState = msgspec.field(name="kept")
    epoch: int = 0
    v: int = _FORMAT


class StateFile:
    """The files in which a lighthouse saves its state for the next process."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._last = path.with_name(f"{path.name}.last")
        self._run = run
        self._lock: int | None = None
        self._saved: bytes = b""

    async def take(self, *, wait: bool) -> None:
        """Take the lock, or ``wait`` for the lighthouse that has it; or raise LighthouseError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, _PRIVATE_FILE)
        except OSError as error:
            raise LighthouseError(f"{self._path}: cannot be written: {error.strerror}") from None
        logged = False
        while not _locked(lock, self._path):
            if not wait:
                pid = os.pread(lock, _LONGEST_PID, 0).decode(errors="replace").strip()
                os.close(lock)
                raise LighthouseError(
                    f"{self._path}: another lighthouse uses this state"
                    f"{f', pid {pid}' if pid.isdecimal() else ''}; "
                    "stop it, or start this one with --standby to wait for its end"
                )
            if not logged:
                _log.info("standby: waiting for the lighthouse that uses %s", self._path)
                logged = True
            await asyncio.sleep(_POLL_S)
        self._lock = lock
        with suppress(OSError):  # on a full disk the pid is missing in messages
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def load(self) -> tuple[SavedState, int] | None:
        """Return the saved state and epoch, or None; a damaged file is renamed.

        LighthouseError if it is another run's, of a later version, or cannot be read.
        """
        if self._path.exists() and not self._path.is_file():  # reading a pipe would block
            raise LighthouseError(f"{self._path}: need a regular file")
        try:
            data = self._path.read_bytes()
            self._check(msgspec.json.decode(data, type=_Header))
            saved = msgspec.json.decode(data, type=_File)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LighthouseError(f"{self._path}: cannot be read: {error.strerror}") from None
        except UNREADABLE as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            with suppress(OSError):
                self._path.replace(aside)
            _log.warning(
                "%s: damaged state of a lighthouse, renamed to %s: %s", self._path, aside, error
            )
            return None
        self._saved = data
        return saved.state, saved.epoch

    def _check(self, header: _Header) -> None:
        if header.run != self._run:
            raise LighthouseError(
                f"{self._path}: need the state of run {self._run!r}, was of run {header.run!r}"
            )
        if header.v > _FORMAT:
            raise LighthouseError(
                f"{self._path}: need format {_FORMAT} at most, was {header.v}: "
                "a newer torchloom wrote it"
            )

    def differs(self, state: SavedState, epoch: int) -> bool:
        """Return whether this differs from the file."""
        return self._encoded(state, epoch) != self._saved

    def save(self, state: SavedState, epoch: int) -> None:
        """Replace the file; StateError if it cannot be written."""
        data = self._encoded(state, epoch)
        write_private(self._path, data.decode())
        self._saved = data

    def save_reply(self, reply: bytes) -> None:
        """Save the answer that the members of a quorum are about to get; or raise StateError."""
        write_whole(self._last, reply)

    def last_reply(self) -> bytes:
        """Return the last answer to members, or nothing."""
        try:
            return self._last.read_bytes() if self._last.is_file() else b""  # a pipe would block
        except OSError:
            return b""

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _encoded(self, state: SavedState, epoch: int) -> bytes:
        return msgspec.json.encode(_File(run=self._run, state=state, epoch=epoch))


def id_by_the_clock() -> int:
    """Return a quorum id above those of all earlier processes, also if their state is lost."""
    return max(0, round((time.time() - _2026_S) * 1000))


def _locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StateError(f"{path}.lock: cannot be locked: {error.strerror}") from None
    return True
