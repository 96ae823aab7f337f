"""Who may join and control the run on the embedded broker: what was given, and what is revoked."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from functools import partial

from torchloom_core.config.services import Join
from torchloom_core.floor.errors import BrokerError, MessageError, StateError
from torchloom_core.live.transport.broker import EmbeddedBroker, OwnServer
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.wire.access import Access, Revoke

_log = logging.getLogger(__name__)

MOST_CUT = 1000
"""The server gets the whole list of what is revoked at each change."""

_RETRY_S = 60.0
_SHARED_S = 3.0
"""How long the answer to a revocation waits until the cluster has stored it."""

_OWN_SERVER = "this run has a NATS server of its own, which lists and revokes credentials"


class AccessService:
    """Lists and revokes credentials; ``write_join_file`` gets the end of those for joining.

    That is in seconds of Unix time, 0: none.
    """

    def __init__(
        self,
        run: str,
        broker: EmbeddedBroker | OwnServer | None,
        settings: Join,
        write_join_file: Callable[[int], None],
        drop_reports: Callable[[str], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._write_join_file = write_join_file
        self._drop_reports = drop_reports
        self._join_expires_s = 0
        self.enrolment: Enrolment | None = None
        self.share: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0.0)
        self._grants = Grants()
        if broker is not None:
            self._grants = broker.credentials.grants
            mint = broker.credentials.worker_jwt
            self.enrolment = Enrolment(run, mint, self._grants, self._refusal)

    def listed(self) -> Access:
        """Return who has credentials; MessageError without an embedded broker."""
        register = self._embedded.credentials.register
        return Access(
            people=tuple(register.people()),
            workers=len(self._grants),
            blocked=tuple(filter(register.revoked.blocks, register.revoked.blocked)),
            join_expires_s=self._join_expires_s,
        )

    async def revoke(self, wanted: Revoke) -> str:
        """Revoke credentials, and return what was done; MessageError if there are none."""
        broker, name = self._embedded, wanted.name or ""
        register = broker.credentials.register
        match wanted.kind:
            case "person":
                if not any(one.name == name for one in register.people()):
                    raise MessageError(f"access.revoke: {name} has no credentials")
                # Also if all are revoked: the server may not have loaded the list yet.
                count = register.revoke_person(name)
                text = f"revoked {count} credentials of {name}"
                text += "" if count else ": those they had were revoked before"
            case "worker" if wanted.undo:
                if not register.unblock(name):
                    raise MessageError(f"access.revoke: the worker {name} is not blocked")
                return f"the worker {name} may join again"
            case "worker":
                register.revoke_worker(name, self._grants.keys_of(name))
                text = f"revoked the credentials of the worker {name}, which may not join again"
            case _:
                broker.credentials.renew_joiner()
                self.write_join_file()
                text = "revoked the credentials for joining; join.json has new ones"
        await asyncio.to_thread(broker.reload)
        return text + await self._shared()

    async def _shared(self) -> str:
        """Give the list to the cluster's other hosts; return what to add to the answer."""
        try:
            async with asyncio.timeout(_SHARED_S):
                await self.share()
        except (BrokerError, StateError, TimeoutError) as error:
            _log.warning("who has access is not shared with the other hosts yet: %s", error)
            return "; the cluster's other hosts do not have this yet: repeat the command"
        return ""

    async def cut(self, worker: str) -> str:
        """Revoke a worker's credentials, and delete what the Weaver has not read of its reports.

        MessageError without an embedded broker, or once so many were cut that one process enrols
        under ever new names.
        """
        if len(self._embedded.credentials.register.revoked.blocked) >= MOST_CUT:
            raise MessageError(
                f"need fewer than {MOST_CUT} blocked workers to block {worker}: make new "
                "credentials for joining with `torchloom credentials revoke --join`"
            )
        text = await self.revoke(Revoke(kind="worker", name=worker))
        await self._drop_reports(worker)
        return text

    def write_join_file(self) -> None:
        """Write ``join.json``, or raise StateError."""
        if self._broker is not None and self._broker.credentials.joiner_is_revoked:
            self._broker.credentials.renew_joiner()  # another host of the cluster has revoked it
        valid_s = round(self._settings.expires_s)
        self._join_expires_s = int(time.time()) + valid_s if valid_s and self._broker else 0
        self._write_join_file(self._join_expires_s)

    async def renew_join_file(self) -> None:
        """Write ``join.json`` again in time, for as long as its credentials expire."""
        often_s = self._settings.expires_s / 2
        wait_s = often_s
        while self._join_expires_s:
            await asyncio.sleep(wait_s)
            wait_s = often_s
            try:
                self.write_join_file()
            except StateError as error:
                _log.warning("join.json has credentials that expire: %s", error)
                wait_s = min(often_s, _RETRY_S)

    @property
    def _embedded(self) -> EmbeddedBroker | OwnServer:
        if self._broker is None:
            raise MessageError(_OWN_SERVER)
        return self._broker

    def _refusal(self, worker: str) -> str:
        """Return why a worker of this name gets no credentials, or nothing."""
        if self._embedded.credentials.register.revoked.blocks(worker):
            return f"worker {worker}: its credentials were revoked, and its name is blocked"
        patterns = self._settings.names
        if any(fnmatchcase(worker, pattern) for pattern in patterns):
            return ""
        return f"need a worker name of [join] names ({', '.join(patterns)}), was {worker}"
