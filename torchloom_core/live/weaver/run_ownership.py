"""Decide whether this Weaver may control the run, or another one that is alive does.

It may if no other Weaver is alive. The last owner has ended if it used the same state folder, as
its lock is free; an owner with another folder is queried. The run is taken from a living Weaver
only with ``--take-over``, and not twice within ten minutes. The locked file of a state folder also
names the process with the lock.
"""

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

from torchloom_core.floor.errors import RunHeldError, StateError
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.owner import Owner
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_LOCK_S = 2.0
"""How long to wait for a Weaver of this folder that is about to end."""

_SILENT_S = 5.0
"""A Weaver of another folder without an answer for this long has ended or hangs. A shorter
silence is normal, as after a restart of the broker."""

_ASK_EVERY_S = 0.5
_TAKEN_AGAIN_S = 600.0
"""Minimum time between two take-overs from a living Weaver."""


_FILE = "weaver.lock"
_POLL_S = 0.1


class FolderLock:
    """The lock on a state folder, free once the process ends; StateError if it cannot write."""

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
        """Take the lock within ``patience_s``; return False if another process has it."""
        deadline = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

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


async def lock_folder(state_dir: Path, *, take_over: bool) -> FolderLock:
    """Lock the state folder; RunHeldError if a living Weaver has it, unless ``take_over``."""
    lock = FolderLock(state_dir)
    if not await lock.take(0.0 if take_over else _LOCK_S) and not take_over:
        holder = lock.holder()
        lock.release()
        raise RunHeldError(
            f"state folder {state_dir}: another Weaver runs on it ({holder or 'it is starting'}); "
            "stop it, start this one with --take-over, or set another weaver.state_dir"
        )
    return lock


async def take_run(bus: NatsBus, run: str, lock: FolderLock, *, take_over: bool) -> None:
    """Own the run; RunHeldError if a living Weaver does, unless ``take_over``; not twice soon."""
    other = await living(bus, lock)
    if other is not None:
        if not take_over:
            raise RunHeldError(
                f"run {run}: another Weaver controls it ({other}); stop it, start this one with "
                "--take-over, or use another run.name or another broker"
            )
        if other.forced and other.age_s < _TAKEN_AGAIN_S:
            raise RunHeldError(
                f"run {run}: it was already taken over {other.age_s:.0f} s ago ({other}); if two "
                "supervisors start Weavers with --take-over, stop one of them; to move the run "
                f"again within {_TAKEN_AGAIN_S / 60:.0f} min stop that Weaver first"
            )
        _log.warning("run %s: taken over from the Weaver of %s, which ends", run, other)
    await bus.owner.declare(msgspec.structs.replace(lock.owner, forced=other is not None))


async def living(bus: NatsBus, lock: FolderLock) -> Owner | None:
    """Return another living Weaver that controls the run, or None."""
    recorded = await bus.owner.recorded()
    own = lock.owner.folder_id, lock.owner.host
    if recorded is not None and lock.held and (recorded.folder_id, recorded.host) == own:
        return None  # it had our lock before us, so it has ended
    deadline = time.monotonic() + (0.0 if recorded is None else _SILENT_S)
    while True:
        other = await bus.owner.query()
        if other is not None or time.monotonic() >= deadline:
            return other
        await asyncio.sleep(_ASK_EVERY_S)
