"""Who may have which worker name: the Weaver's answer to a worker that asks for credentials."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from torchloom_core.plain_text import RateLimitedLog
from torchloom_core.transport.security.grants import Grants, Life
from torchloom_core.transport.security.nats_jwt import is_user_key
from torchloom_core.wire import subjects
from torchloom_core.wire.messages import JoinReply, JoinRequest

_log = logging.getLogger(__name__)

_SHOWN = 80

_NAMES_KEPT = 200_000
"""Of how many names, and lives, it is known what became of them; the oldest are forgotten."""


class _Holder(msgspec.Struct, frozen=True):
    incarnation: int
    public_key: str | None


class Enrolment:
    """Grants a worker's name to one key at a time, and each of its lives to one key for good.

    Parameters
    ----------
    run : str
        The run whose workers are enrolled.
    mint : callable
        ``(worker, incarnation, public_key) -> jwt``, such as ``Credentials.worker_jwt``.
    grants : Grants
        What was given so far.
    """

    def __init__(self, run: str, mint: Callable[[str, int, str], str], grants: Grants) -> None:
        self._run = run
        self._mint = mint
        self._grants = grants
        self._holders: dict[str, _Holder] = {}
        self._newest: dict[str, int] = {}
        self._passed: dict[Life, None] = {}
        self._limited_log = RateLimitedLog(_log)

    def admit(
        self, request: JoinRequest, alive: int | None, unwanted: str = "", in_use: str = ""
    ) -> JoinReply:
        """Answer a worker that asks, and say in the log, now and then, if it gets nothing.

        Parameters
        ----------
        alive : int, optional
            The incarnation of that name which is alive, if one is.
        unwanted : str
            Why nobody is wanted where the worker sits, if so.
        in_use : str
            Why the name cannot be this worker's, if another process has it.
        """
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
        """Return the worker's JWT, or one line on why it gets none.

        The holder of a name may ask again; another key gets the name only after
        :meth:`release`, and for a life of its own.
        """
        error = self._fault(request)
        taken = "" if error else self._other_holder(request)
        error = error or taken or self._life_fault(request)
        if error:
            return JoinReply(error=error, taken=bool(taken))
        life = request.worker, request.incarnation
        jwt = self._mint(*life, request.public_key)
        self._holders[request.worker] = _Holder(request.incarnation, request.public_key)
        self._grants.add(life, request.public_key)
        self._pass_on(life)
        return JoinReply(jwt=jwt)

    def may_begin(self, worker: str, incarnation: int) -> bool:
        """Say whether the name was not given to another life since it was given to this one.

        Of what an earlier Weaver gave nothing is known.
        """
        return (worker, incarnation) not in self._passed

    def seen(self, worker: str, incarnation: int) -> None:
        """Hold the name of a worker that an earlier Weaver enrolled and that is still heard."""
        self._holders.setdefault(worker, _Holder(incarnation, None))

    def release(self, worker: str) -> None:
        """Free a name: its worker exited, or is silent."""
        self._holders.pop(worker, None)

    def _pass_on(self, life: Life) -> None:
        """Note that the name is this life's now, and no more that of the one before."""
        worker, incarnation = life
        before = self._newest.get(worker, incarnation)
        self._newest[worker] = incarnation
        self._passed.pop(life, None)
        if before != incarnation:
            self._passed[worker, before] = None
        tables: tuple[dict[Any, Any], ...] = (self._newest, self._passed, self._holders)
        for table in tables:
            if len(table) > _NAMES_KEPT:
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
        return ""

    def _life_fault(self, request: JoinRequest) -> str:
        life = request.worker, request.incarnation
        if self._grants.key_of(life) not in (None, request.public_key):
            return (
                f"worker {request.worker}: incarnation {request.incarnation} was given to another "
                "key; each life needs a number of its own"
            )
        return ""

    def _other_holder(self, request: JoinRequest) -> str:
        holder = self._holders.get(request.worker)
        if holder is None or holder.public_key == request.public_key:
            return ""
        return (
            f"worker {request.worker} is already enrolled by another process that is alive "
            f"(incarnation {holder.incarnation}); each process needs a group and rank of its own"
        )
