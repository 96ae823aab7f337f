"""Grant worker names: the Weaver's answer to a worker that requests credentials."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.transport.security.grants import Grants, Incarnation
from torchloom_core.live.transport.security.nats_jwt import is_user_key
from torchloom_core.wire import subjects
from torchloom_core.wire.messages import JoinReply, JoinRequest

_log = logging.getLogger(__name__)

_SHOWN = 80

_MOST_NAMES = 200_000
"""Maximum number of names and incarnations that are remembered; the oldest are forgotten."""


class _Holder(msgspec.Struct, frozen=True):
    incarnation: int
    public_key: str | None


class Enrolment:
    """Grants a worker's name to one key at a time, and each incarnation to one key forever.

    ``refusal`` returns why a worker of some name gets no credentials, or nothing.
    """

    def __init__(
        self,
        run: str,
        mint: Callable[[str, int, str], str],
        grants: Grants,
        refusal: Callable[[str], str] = lambda worker: "",
    ) -> None:
        self._run = run
        self._refusal = refusal
        self._mint = mint
        self._grants = grants
        self._holders: dict[str, _Holder] = {}
        self._newest: dict[str, int] = {}
        self._passed: dict[Incarnation, None] = {}
        self._limited_log = RateLimitedLog(_log)

    def admit(
        self, request: JoinRequest, alive: int | None, unwanted: str = "", in_use: str = ""
    ) -> JoinReply:
        """Answer a join request; a refusal is logged, rate-limited by worker."""
        if alive is None:
            self.release(request.worker)
        else:
            self.seen(request.worker, alive)
        if in_use:
            reply = JoinReply(error=in_use, taken=True)
        elif unwanted:
            reply = JoinReply(error=unwanted, unwanted=True)
        else:
            reply = self.grant(request)
        if reply.error:
            worker = request.worker[:_SHOWN]
            self._limited_log.add(worker, f"{worker!r} may not join: {reply.error}")
        return reply

    def grant(self, request: JoinRequest) -> JoinReply:
        """Return the worker's JWT, or the reason for a refusal in one line.

        The owner of a name may request it again; another key gets the name only after
        :meth:`release`, and for another incarnation.
        """
        error = self._fault(request)
        taken = "" if error else self._other_holder(request)
        error = error or taken or self._incarnation_fault(request)
        if error:
            return JoinReply(error=error, taken=bool(taken))
        process = request.worker, request.incarnation
        jwt = self._mint(*process, request.public_key)
        self._holders[request.worker] = _Holder(request.incarnation, request.public_key)
        self._grants.add(process, request.public_key)
        self._pass_on(process)
        return JoinReply(jwt=jwt)

    def may_begin(self, worker: str, incarnation: int) -> bool:
        """Return whether this Weaver granted the name to no later incarnation."""
        return (worker, incarnation) not in self._passed

    def seen(self, worker: str, incarnation: int) -> None:
        """Reserve the name of a living worker that an earlier Weaver enrolled."""
        self._holders.setdefault(worker, _Holder(incarnation, None))

    def release(self, worker: str) -> None:
        """Free a name: its worker exited, or is unreachable."""
        self._holders.pop(worker, None)

    def _pass_on(self, process: Incarnation) -> None:
        """Note that the name belongs to this incarnation now, not to the previous one."""
        worker, incarnation = process
        before = self._newest.get(worker, incarnation)
        self._newest[worker] = incarnation
        self._passed.pop(process, None)
        if before != incarnation:
            self._passed[worker, before] = None
        tables: tuple[dict[Any, Any], ...] = (self._newest, self._passed, self._holders)
        for table in tables:
            if len(table) > _MOST_NAMES:
                del table[next(iter(table))]

    def _fault(self, request: JoinRequest) -> str:
        if request.run != self._run:
            return f"need run {self._run}, was {request.run[:_SHOWN]!r}"
        if not subjects.is_name(request.worker):
            return f"need a worker name of {subjects.NAME_RULE}, was {request.worker[:_SHOWN]!r}"
        if not is_user_key(request.public_key):
            return (
                f"worker {request.worker}: need the public key of a NATS user (U...), "
                f"was {request.public_key[:_SHOWN]!r}"
            )
        return self._refusal(request.worker)

    def _incarnation_fault(self, request: JoinRequest) -> str:
        process = request.worker, request.incarnation
        if self._grants.key_of(process) not in (None, request.public_key):
            return (
                f"worker {request.worker}: incarnation {request.incarnation} was given to another "
                "key; each process of a worker needs a new number"
            )
        return ""

    def _other_holder(self, request: JoinRequest) -> str:
        holder = self._holders.get(request.worker)
        if holder is None or holder.public_key == request.public_key:
            return ""
        return (
            f"worker {request.worker} is already enrolled by another running process "
            f"(incarnation {holder.incarnation}); give each process its own group and rank"
        )
