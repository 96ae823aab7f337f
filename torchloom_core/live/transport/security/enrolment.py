"""Grant worker names: the Weaver's answer to a worker that requests credentials.

The key that each incarnation was granted to is stored, since credentials are never revoked.
"""

import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_private
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.transport.security.nats_jwt import is_user_key
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.messages import JoinReply, JoinRequest

_log = logging.getLogger(__name__)

_SHOWN = 80

_MOST_NAMES = 200_000
"""Maximum number of names and incarnations that are remembered; the oldest are forgotten."""


_MOST_GRANTS = 200_000
"""Maximum number of grants; the oldest are forgotten. The file is rewritten at twice as many."""

Incarnation = tuple[str, int]
"""Worker and incarnation."""

_lines = msgspec.json.Decoder(tuple[str, int, str])


class Grants:
    """The newest grants; with a path also those of earlier Weavers, one JSON line each."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._key_of: dict[Incarnation, str] = {}
        self._on_file = 0
        self._file = -1
        self._close: Callable[[], object] = lambda: None
        self._limited_log = RateLimitedLog(_log)
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._key_of)

    def keys_of(self, worker: str) -> list[str]:
        """Return the keys that the incarnations of a worker were granted to."""
        return [key for (name, _), key in self._key_of.items() if name == worker]

    def key_of(self, process: Incarnation) -> str | None:
        """Return the key that the incarnation was granted to, if any."""
        return self._key_of.get(process)

    def add(self, process: Incarnation, public_key: str) -> None:
        """Note that the incarnation was granted to the key; a failed write is logged."""
        if self._key_of.get(process) == public_key:
            return
        self._key_of[process] = public_key
        if len(self._key_of) > _MOST_GRANTS:
            del self._key_of[next(iter(self._key_of))]
        if self._path is None:
            return
        try:
            os.write(self._opened(self._path), _line(process, public_key))
        except OSError as error:
            self._limited_log.add("", f"{self._path}: cannot be written: {error.strerror}")
        self._on_file += 1
        if self._on_file > 2 * _MOST_GRANTS:
            self._write(self._path)

    def _opened(self, path: Path) -> int:
        """Return the open file: a herd appends thousands of lines in seconds."""
        if self._file < 0:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._close = weakref.finalize(self, os.close, self._file)
        return self._file

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise StateError(f"{path}: cannot be read: {error.strerror}") from None
        for line in lines[-_MOST_GRANTS:]:
            try:
                worker, incarnation, public_key = _lines.decode(line)
            except UNREADABLE:  # cut short by a full disk, or by the end of the Weaver
                continue
            self._key_of[worker, incarnation] = public_key
        self._on_file = len(lines)
        if len(lines) != len(self._key_of):
            self._write(path)

    def _write(self, path: Path) -> None:
        """Rewrite the file with the remembered grants."""
        self._close()
        self._file = -1
        text = b"".join(_line(process, key) for process, key in self._key_of.items())
        try:
            write_private(path, text.decode())
        except StateError as error:
            self._limited_log.add("", str(error))
        self._on_file = len(self._key_of)


def _line(process: Incarnation, public_key: str) -> bytes:
    return msgspec.json.encode((*process, public_key)) + b"\n"


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
