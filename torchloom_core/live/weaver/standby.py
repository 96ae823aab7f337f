"""Stand by for a run: copy the leader's record, and wait until its lease is free.

All imports and plugins are loaded before, and the broker is connected: taking over then needs no
more than a restart of the Weaver would read.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import nats.errors

from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.errors import BrokerError
from torchloom_core.floor.files import has_room
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.standbys import ANNOUNCE_EVERY_S
from torchloom_core.live.weaver.record_copies import RecordFollower
from torchloom_core.live.weaver.recovery import Inheritance
from torchloom_core.live.weaver.retention_runner import RetentionRunner
from torchloom_core.live.weaver.run_ownership import FolderLock, living

_log = logging.getLogger(__name__)

_CATCH_UP_S = 1.0


async def stand_by(
    bus: NatsBus, run: str, lock: FolderLock, root: Path, rules: Trajectory | None
) -> bool:
    """Return once this Weaver has the run's lease, and the record up to its end in ``root``.

    The result is whether another Weaver led the run before. One that cannot write to ``root``
    leaves the lease to others.
    """
    Inheritance({}, "").recovered(0)
    follower = RecordFollower(await bus.record_stream(), root)
    leader = await bus.owner.recorded()
    _log.info("standing by for run %s; its last leader: %s", run, leader or "none")

    async def is_free() -> bool:
        """Return whether no Weaver leads that has never had the lease."""
        try:
            return await living(bus, lock) is None
        except BrokerError:
            return False

    room = Room(root)

    async def announce() -> None:
        while True:
            try:
                await bus.standbys.announce(lock.owner)
            except nats.errors.Error as error:
                _log.debug("not announced: %s", error)
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    runner = RetentionRunner(root, rules)
    beside = [asyncio.create_task(one) for one in (announce(), follower.run(), runner.run())]
    try:
        was_led = await bus.lease.wait(is_free, room.is_there) or leader is not None
        if was_led:
            _log.warning("run %s: its leader is gone or has ended; taking over", run)
        else:
            _log.info("run %s: no Weaver has led it before; leading it", run)
        await end_all(*beside)
        await follower.catch_up(_CATCH_UP_S)
    finally:
        await end_all(*beside)
        follower.close()
    await bus.reports.look_for_others()
    await bus.owner.declare(lock.owner)
    return was_led


class Room:
    """Whether the disk of ``root`` has room, without which a Weaver cannot lead; logs a change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._was_there = True

    async def is_there(self) -> bool:
        """Try to write."""
        is_there = await asyncio.to_thread(self._try)
        if self._was_there and not is_there:
            text = "%s: cannot be written: going on standing by, as a leader needs to write there"
            _log.warning(text, self._root)
        self._was_there = is_there
        return is_there

    def _try(self) -> bool:
        with suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True)
        return has_room(self._root)
