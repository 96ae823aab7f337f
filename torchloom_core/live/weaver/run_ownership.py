"""Decide whether this Weaver may control the run, or another one that is alive does.

It may if no other Weaver is alive. The last owner has ended if it used the same state folder, as
its lock is free; an owner with another folder is queried. The run is taken from a living Weaver
only with ``--take-over``, and not twice within ten minutes.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import RunHeldError
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.owner import Owner
from torchloom_core.live.weaver.folder_lock import FolderLock

_log = logging.getLogger(__name__)

_LOCK_S = 2.0
"""How long to wait for a Weaver of this folder that is about to end."""

_SILENT_S = 5.0
"""A Weaver of another folder without an answer for this long has ended or hangs. A shorter
silence is normal, as after a restart of the broker."""

_ASK_EVERY_S = 0.5
_TAKEN_AGAIN_S = 600.0
"""Minimum time between two take-overs from a living Weaver."""


async def lock_folder(state_dir: Path, *, take_over: bool) -> FolderLock:
    """Take the lock on the state folder; with ``take_over`` another Weaver may still have it.

    RunHeldError if a living Weaver has it, StateError if the folder cannot be written.
    """
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
    """Make this process the owner of the run.

    RunHeldError if a living Weaver has it, and ``take_over`` is false or comes too soon.
    """
    living = await _living(bus, lock)
    if living is not None:
        if not take_over:
            raise RunHeldError(
                f"run {run}: another Weaver controls it ({living}); stop it, start this one with "
                "--take-over, or use another run.name or another broker"
            )
        if living.forced and living.age_s < _TAKEN_AGAIN_S:
            raise RunHeldError(
                f"run {run}: it was already taken over {living.age_s:.0f} s ago ({living}); if two "
                "supervisors start Weavers with --take-over, stop one of them; to move the run "
                f"again within {_TAKEN_AGAIN_S / 60:.0f} min stop that Weaver first"
            )
        _log.warning("run %s: taken over from the Weaver of %s, which ends", run, living)
    await bus.owner.declare(msgspec.structs.replace(lock.owner, forced=living is not None))


async def _living(bus: NatsBus, lock: FolderLock) -> Owner | None:
    """Return another living Weaver that controls the run, or None."""
    recorded = await bus.owner.recorded()
    if recorded is not None and lock.held and _is_same_folder(recorded, lock.owner):
        return None  # it had our lock before us, so it has ended
    deadline = time.monotonic() + (0.0 if recorded is None else _SILENT_S)
    while True:
        living = await bus.owner.query()
        if living is not None or time.monotonic() >= deadline:
            return living
        await asyncio.sleep(_ASK_EVERY_S)


def _is_same_folder(owner: Owner, own: Owner) -> bool:
    return (owner.folder_id, owner.host) == (own.folder_id, own.host)
