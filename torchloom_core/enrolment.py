"""Who may have which worker name: the Weaver's answer to a worker that asks for credentials."""

import re
from collections.abc import Callable

import msgspec

from torchloom_core.messages import JoinReply, JoinRequest
from torchloom_core.nats_jwt import is_user_key

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Holder(msgspec.Struct, frozen=True):
    incarnation: int
    public_key: str | None


class Enrolment:
    """Grants a worker's name to one key at a time.

    Parameters
    ----------
    run : str
        The run whose workers are enrolled.
    mint : callable
        ``(worker, public_key) -> jwt``, such as ``Credentials.worker_jwt``.
    """

    def __init__(self, run: str, mint: Callable[[str, str], str]) -> None:
        self._run = run
        self._mint = mint
        self._holders: dict[str, _Holder] = {}

    def grant(self, request: JoinRequest) -> JoinReply:
        """Return the worker's JWT, or one line on why it gets none.

        The holder of a name may ask again; another key gets the name only after
        :meth:`release`.
        """
        error = self._fault(request)
        if error:
            return JoinReply(error=error)
        jwt = self._mint(request.worker, request.public_key)
        self._holders[request.worker] = _Holder(request.incarnation, request.public_key)
        return JoinReply(jwt=jwt)

    def seen(self, worker: str, incarnation: int) -> None:
        """Hold the name of a worker that an earlier Weaver enrolled and that is still heard."""
        self._holders.setdefault(worker, _Holder(incarnation, None))

    def release(self, worker: str) -> None:
        """Free a name: its worker exited, or is silent."""
        self._holders.pop(worker, None)

    def _fault(self, request: JoinRequest) -> str:
        if request.run != self._run:
            return f"need run {self._run}, was {request.run!r}"
        if not _NAME.fullmatch(request.worker):
            return f"need a worker name of 1 to 64 of A-Z a-z 0-9 _ -, was {request.worker[:80]!r}"
        if not is_user_key(request.public_key):
            return (
                f"worker {request.worker}: need the public key of a NATS user (U...), "
                f"was {request.public_key[:80]!r}"
            )
        holder = self._holders.get(request.worker)
        if holder is not None and holder.public_key != request.public_key:
            return (
                f"worker {request.worker} is held by incarnation {holder.incarnation}, "
                "which is still alive; another group needs another TORCHLOOM_GROUP"
            )
        return ""
