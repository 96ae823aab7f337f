"""Whether this Weaver may control the run, or another one that is alive does.

It may where nobody else does: the last one ended, or was of the same state folder, whose lock is
free, so that it is dead. One of another folder is asked. From one that is alive the run is taken
only on demand (``--take-over``), and not again and again.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from torchloom_core.errors import RunHeldError
from torchloom_core.transport import NatsBus
from torchloom_core.transport.owner import Owner
from torchloom_core.weaver.folder_lock import FolderLock

_log = logging.getLogger(__name__)

_LOCK_S = 2.0
"""For a Weaver of this folder that is about to end."""

_SILENT_S = 5.0
"""One of another folder that does not answer for so long is dead, or hangs: it may be away from
the broker for a moment, as after a restart of that."""

_ASK_EVERY_S = 0.5
_TAKEN_AGAIN_S = 600.0
"""A run that was taken from a living Weaver is not taken again so soon."""


async def lock_folder(state_dir: Path, *, take_over: bool) -> FolderLock:
    """Take the lock on the state folder; with ``take_over`` it may be another's still.

    Raises
    ------
    RunHeldError
        If a Weaver that is alive has it.
    StateError
        If the folder cannot be written.
    """
    lock = FolderLock(state_dir)
    if not await lock.take(0.0 if take_over else _LOCK_S) and not take_over:
        holder = lock.holder()
        lock.release()
        raise RunHeldError(
            f"state folder {state_dir}: another Weaver runs on it ({holder or 'it is starting'}); "
            "stop that one, or start this one with --take-over, or with a weaver.state_dir of its "
            "own"
        )
    return lock


async def take_run(bus: NatsBus, run: str, lock: FolderLock, *, take_over: bool) -> None:
    """Make this process the owner of the run.

    Raises
    ------
    RunHeldError
        If another Weaver has it, is alive, and is not to be, or not again, deprived of it.
    """
    living = await _living(bus, lock)
    if living is not None:
        if not take_over:
            raise RunHeldError(
                f"run {run}: another Weaver controls it ({living}); stop that one, or start this "
                "one with --take-over, or with another run.name, or on another broker"
            )
        if living.forced and living.age_s < _TAKEN_AGAIN_S:
            raise RunHeldError(
                f"run {run}: it was already taken over {living.age_s:.0f} s ago ({living}): do two "
                "supervisors start Weavers of it with --take-over? Stop one of them; to move the "
                f"run again within {_TAKEN_AGAIN_S / 60:.0f} min stop that Weaver first"
            )
        _log.warning("run %s: taken over from the Weaver of %s, which ends", run, living)
    await bus.owner.declare(msgspec.structs.replace(lock.owner, forced=living is not None))


async def _living(bus: NatsBus, lock: FolderLock) -> Owner | None:
    """Return another Weaver that controls the run and is alive."""
    recorded = await bus.owner.recorded()
    if recorded is not None and lock.held and _is_of_place(recorded, lock.owner):
        return None  # who had our lock before us
    deadline = time.monotonic() + (0.0 if recorded is None else _SILENT_S)
    while True:
        living = await bus.owner.ask()
        if living is not None or time.monotonic() >= deadline:
            return living
        await asyncio.sleep(_ASK_EVERY_S)


def _is_of_place(owner: Owner, own: Owner) -> bool:
    return (owner.folder_id, owner.host) == (own.folder_id, own.host)
