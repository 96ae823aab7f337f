"""What outlives a lighthouse's process, in one small file that is replaced whole.

The lock beside it is held by the one lighthouse that serves; another waits for it as a stand-by.
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
from torchloom_core.files import write_private
from torchloom_core.lighthouse.membership import Kept
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_2026_S = 1_767_225_600
_FORMAT = 1
_POLL_S = 0.1
_PRIVATE_FILE = 0o600


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
                os.close(lock)
                raise LighthouseError(
                    f"{self._path}: another lighthouse serves with this state; "
                    "--standby waits until it has ended"
                )
            if not told:
                _log.info("standing by: another lighthouse serves with %s", self._path)
                told = True
            await asyncio.sleep(_POLL_S)
        self._lock = lock

    def load(self) -> tuple[Kept, int] | None:
        """Return what the last life kept and the Weaver's epoch, or None where there is nothing.

        A damaged file is put aside, and counts as nothing.

        Raises
        ------
        LighthouseError
            If it is another run's, of a later version, or cannot be read.
        """
        try:
            data = self._path.read_bytes()
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
        if saved.run != self._run:
            raise LighthouseError(
                f"{self._path}: need the state of run {self._run!r}, was of run {saved.run!r}"
            )
        if saved.v > _FORMAT:
            raise LighthouseError(
                f"{self._path}: need format {_FORMAT} at most, was {saved.v}: "
                "a newer torchloom wrote it"
            )
        self._saved = data
        return saved.kept, saved.epoch

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

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _encoded(self, kept: Kept, epoch: int) -> bytes:
        return msgspec.json.encode(_Saved(run=self._run, kept=kept, epoch=epoch))


def first_state() -> Kept:
    """Return the state of a lighthouse that knows of no earlier one.

    Its ids start from the clock, so that one whose state is lost does not use an id again.
    """
    return Kept(quorum_id=max(0, round((time.time() - _2026_S) * 1000)))


def _locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StateError(f"{path}.lock: cannot be locked: {error.strerror}") from None
    return True
