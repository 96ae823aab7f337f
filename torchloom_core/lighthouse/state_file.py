"""What outlives a lighthouse's process, in small files that are replaced whole.

One says what the next life must know, and is on the disk before a new quorum is told to anyone.
Beside it (``.last``) is the last quorum as its members were told it, step by step: the next life
need know that only where this one is killed as it tells them, so that a power cut may lose it. The
lock beside it is held by the one lighthouse that serves, and says its pid; another waits for it as
a standby.
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

from torchloom_core.errors import LighthouseError, StateError
from torchloom_core.files import write_private, write_whole
from torchloom_core.lighthouse.membership import Kept
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_2026_S = 1_767_225_600
_FORMAT = 1
_POLL_S = 0.1
_PRIVATE_FILE = 0o600
_LONGEST_PID = 16


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at first: a later version may have more beside it."""

    run: str
    v: int = _FORMAT


class _Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    kept: Kept
    epoch: int = 0
    v: int = _FORMAT


class StateFile:
    """Where a lighthouse keeps what its next life must know.

    Parameters
    ----------
    path : Path
        The file; its folder is made.
    run : str
        Whose it is: that of another run is refused.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._lock: int | None = None
        self._saved: bytes = b""

    async def take(self, *, wait: bool) -> None:
        """Take the lock; with ``wait`` stand by until whoever holds it has ended.

        Raises
        ------
        LighthouseError
            If another lighthouse holds it and we are not to wait, or there can be no lock.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, _PRIVATE_FILE)
        except OSError as error:
            raise LighthouseError(f"{self._path}: cannot be written: {error.strerror}") from None
        told = False
        while not _locked(lock, self._path):
            if not wait:
                who = os.pread(lock, _LONGEST_PID, 0).decode(errors="replace").strip()
                os.close(lock)
                raise LighthouseError(
                    f"{self._path}: another lighthouse serves with this state"
                    f"{f', pid {who}' if who.isdecimal() else ''}; "
                    "--standby waits until it has ended"
                )
            if not told:
                _log.info("standing by: another lighthouse serves with %s", self._path)
                told = True
            await asyncio.sleep(_POLL_S)
        self._lock = lock
        with suppress(OSError):  # a full disk: only whom it is told of misses it
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def load(self) -> tuple[Kept, int] | None:
        """Return what the last life kept and the Weaver's epoch, or None where there is nothing.

        A damaged file is put aside, and counts as nothing.

        Raises
        ------
        LighthouseError
            If it is another run's, of a later version, or cannot be read.
        """
        if self._path.exists() and not self._path.is_file():  # a pipe would be waited for
            raise LighthouseError(f"{self._path}: need a file, was something else")
        try:
            data = self._path.read_bytes()
            self._check(msgspec.json.decode(data, type=_Header))
            saved = msgspec.json.decode(data, type=_Saved)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LighthouseError(f"{self._path}: cannot be read: {error.strerror}") from None
        except UNREADABLE as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            with suppress(OSError):
                self._path.replace(aside)
            _log.warning(
                "%s: no state of a lighthouse, put aside as %s: %s", self._path, aside, error
            )
            return None
        self._saved = data
        return saved.kept, saved.epoch

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

    def differs(self, kept: Kept, epoch: int) -> bool:
        """Return whether this is not what is on file."""
        return self._encoded(kept, epoch) != self._saved

    def save(self, kept: Kept, epoch: int) -> None:
        """Replace what is on file; only who can write it need wait for it.

        Raises
        ------
        StateError
            If it cannot be written.
        """
        data = self._encoded(kept, epoch)
        write_private(self._path, data.decode())
        self._saved = data

    def note(self, told: bytes) -> None:
        """Replace the last quorum, as its members are about to be told it.

        Raises
        ------
        StateError
            If it cannot be written.
        """
        write_whole(self._last, told)

    def told(self) -> bytes:
        """Return what members were told last, or nothing."""
        try:
            return self._last.read_bytes() if self._last.is_file() else b""  # a pipe would wait
        except OSError:
            return b""

    @property
    def _last(self) -> Path:
        return self._path.with_name(f"{self._path.name}.last")

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _encoded(self, kept: Kept, epoch: int) -> bytes:
        return msgspec.json.encode(_Saved(run=self._run, kept=kept, epoch=epoch))


def id_by_the_clock() -> int:
    """Return a quorum id above all those of earlier lives, also where their state is lost."""
    return max(0, round((time.time() - _2026_S) * 1000))


def _locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StateError(f"{path}.lock: cannot be locked: {error.strerror}") from None
    return True
