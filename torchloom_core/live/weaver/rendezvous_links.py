"""The Weaver's connections to the rendezvous of its roles: their state comes in, changes go out.

A rendezvous waits for nothing of this: without a connection it decides alone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.floor.addresses import address
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.interface.needs import NeedOffers
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.generations import MAX_LINE, Look, Outlook
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.programs import ChangeWanted, ProgramSeen

_log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_LOOK_S = 1.0
_CONNECT_S = 5.0
_SILENT_S = 10.0
"""After which a rendezvous counts as unreachable: it sends its state every 2 s."""

_UPDATE_S = 5.0
"""How often measurements alone are reported: each report is recorded."""

_decode = msgspec.json.Decoder(Outlook).decode
Enter = Callable[[ProgramSeen], None]


class RendezvousLinks:
    """A link for each role with a rendezvous in the config.

    ``quarantined`` are the policies that have failed: a role whose planned changes no policy
    decides on leaves them to its rendezvous.
    """

    def __init__(
        self, config: Config, plugins: ActivePlugins, quarantined: Collection[str], enter: Enter
    ) -> None:
        self._dry_run = config.arbiter.dry_run
        self._plugins, self._quarantined = plugins, quarantined
        named = {role: own.rendezvous for role, own in config.roles.items() if own.rendezvous}
        if config.rendezvous.address:
            named.setdefault(TRAINER, config.rendezvous.address)
        self._links = {
            role: _Link(role, where, self._decides, enter) for role, where in named.items()
        }

    async def run(self) -> None:
        """Keep all connections, for ever."""
        await asyncio.gather(*(link.run() for link in self._links.values()))

    def send(self, wanted: ChangeWanted) -> None:
        """Send a change, if the rendezvous is connected."""
        if wanted.role in self._links:
            self._links[wanted.role].send(wanted.change)

    def _decides(self, role: str) -> bool:
        return not self._dry_run and any(
            active.mode == "act"
            and active.name not in self._quarantined
            and (not active.roles or role in active.roles)
            and any(isinstance(need, NeedOffers) for need in active.policy.needs)
            for active in self._plugins.policies
        )


class _Link:
    def __init__(self, role: str, where: str, decides: Callable[[str], bool], enter: Enter) -> None:
        self._role, self._where, self._decides, self._enter = role, where, decides, enter
        self._writer: asyncio.StreamWriter | None = None
        self._seen: Outlook | None = None
        self._reported_s = 0.0
        self._limited_log = RateLimitedLog(_log)

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (OSError, TimeoutError, ValueError, *UNREADABLE) as error:
                why = str(error) or type(error).__name__
                text = f"the rendezvous of {self._role} at {self._where} cannot be reached: {why}"
                self._limited_log.add("link", text)
            finally:
                self._close()
            if self._seen is not None:
                self._seen = None
                self._enter(ProgramSeen(role=self._role))
            await asyncio.sleep(_AGAIN_S)

    def send(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(msgspec.json.encode(message) + b"\n")

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()

    async def _follow(self) -> None:
        opened = asyncio.open_connection(*address(self._where, "rendezvous"), limit=2 * MAX_LINE)
        reader, self._writer = await asyncio.wait_for(opened, _CONNECT_S)
        looking = asyncio.create_task(self._look())
        try:
            while line := await asyncio.wait_for(reader.readline(), _SILENT_S):
                self._take(_decode(line))
            raise OSError("it has closed the connection")
        finally:
            await end_all(looking)

    async def _look(self) -> None:
        while True:
            self.send(Look(follow=True, decides=self._decides(self._role)))
            await asyncio.sleep(_LOOK_S)

    def _take(self, outlook: Outlook) -> None:
        now_s, before = asyncio.get_running_loop().time(), self._seen
        self._seen = outlook
        if before is None or _structure(before) != _structure(outlook):
            self._enter(ProgramSeen(role=self._role, outlook=outlook))
        elif now_s >= self._reported_s + _UPDATE_S:
            light = msgspec.structs.replace(outlook, assignment=None, program=None)
            self._enter(ProgramSeen(role=self._role, outlook=light, is_update=True))
        else:
            return
        self._reported_s = now_s


def _structure(outlook: Outlook) -> Outlook:
    """Return what changes only with an event: no measurement."""
    return msgspec.structs.replace(
        outlook,
        layer_s=(),
        slowness=dict.fromkeys(outlook.slowness, 1.0),
        committed=-1,
        tokens=(),
        mirrors={},
    )
