"""Answer people's requests: from a NATS request to a kernel input, and back to a reply.

See :mod:`torchloom_core.wire.operator` for the verbs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Annotated, Any

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.live.weaver.access_service import AccessService
from torchloom_core.wire import codec
from torchloom_core.wire.access import Revoke
from torchloom_core.wire.actions import Action
from torchloom_core.wire.decisions import Reply
from torchloom_core.wire.limits import MAX_TEXT, Id
from torchloom_core.wire.operator import (
    Annotation,
    Answer,
    ControlTaken,
    FromSession,
    KnobSet,
    KnobTable,
    KnobUnset,
    Page,
    RequestId,
)
from torchloom_core.wire.requests import (
    Annotate,
    Approve,
    Deny,
    ForgetKnob,
    Propose,
    ReleaseControl,
    Request,
    ResumeActions,
    StopActions,
    TakeControl,
    Want,
)
from torchloom_core.wire.status import Status

_log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
_DURABLE_S = 2.0


class _Proposal(FromSession, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Action
    sure: bool = False
    id: RequestId = ""


class _Approval(FromSession, frozen=True, kw_only=True, forbid_unknown_fields=True):
    proposal: Id
    id: RequestId = ""


class _Denial(_Approval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""


_REQUESTS: dict[str, tuple[Any, Callable[[Any], Want]]] = {
    "knob.set": (KnobSet, lambda m: Propose(action=m.action(), sure=m.sure)),
    "knob.unset": (
        KnobUnset,
        lambda m: ForgetKnob(knob=m.knob, worker=m.worker, role=m.role or msgspec.UNSET),
    ),
    "propose": (_Proposal, lambda m: Propose(action=m.action, sure=m.sure)),
    "approve": (_Approval, lambda m: Approve(proposal=m.proposal)),
    "deny": (_Denial, lambda m: Deny(proposal=m.proposal, reason=m.reason)),
    "actions.resume": (FromSession, lambda m: ResumeActions()),
    "annotate": (Annotation, lambda m: Annotate(text=m.text)),
    "control.take": (ControlTaken, lambda m: TakeControl(lease_s=m.lease_s, force=m.force)),
    "control.release": (FromSession, lambda m: ReleaseControl()),
}
"""The message of each verb that changes something, and what it requests of the kernel."""


class OperatorService:
    """Turns requests into kernel inputs and waits for the kernel's reply."""

    def __init__(
        self,
        epoch: int,
        enter: Callable[[Request], None],
        status: Callable[[Page], Status],
        knobs: Callable[[Page], KnobTable],
        durable: Callable[[], Awaitable[None]] | None = None,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._durable = durable
        self._is_alone = is_alone
        self._epoch = epoch
        self._enter = enter
        self._status = status
        self._knobs = knobs
        self._numbers = count(1)
        self._open: dict[str, asyncio.Future[Reply]] = {}
        self.access: AccessService | None = None

    @property
    def verbs(self) -> dict[str, Callable[[bytes, str], Awaitable[bytes]]]:
        """The handlers, by verb."""
        return {
            "status": partial(self._on_page, "status", self._status),
            "knobs": partial(self._on_page, "knobs", self._knobs),
            "actions.stop": self._on_stop,
            **{verb: partial(self._on_request, verb) for verb in _REQUESTS},
            "access": self._on_access,
            "access.revoke": self._on_revoke,
        }

    def reply(self, reply: Reply) -> None:
        """Pass the kernel's reply on to the request's sender."""
        waiting = self._open.pop(reply.request, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def _on_page(
        self, verb: str, read: Callable[[Page], msgspec.Struct], body: bytes, _: str
    ) -> bytes:
        return codec.encode(read(codec.decode_json(Page, body or b"{}", verb)))

    async def _on_request(self, verb: str, body: bytes, by: str) -> bytes:
        cls, want_of = _REQUESTS[verb]
        message = codec.decode_json(cls, body or b"{}", verb)
        called = getattr(message, "id", "")
        return await self._submit(want_of(message), by, message.session, called)

    async def _on_stop(self, body: bytes, by: str) -> bytes:
        session = ""
        with suppress(MessageError):  # the kill switch works with any body
            session = codec.decode_json(FromSession, body or b"{}", "actions.stop").session
        return await self._submit(StopActions(), by, session)

    @property
    def _access(self) -> AccessService:
        if self.access is None:
            raise MessageError("this Weaver gives no credentials")
        return self.access

    async def _on_access(self, _: bytes, by: str) -> bytes:
        return codec.encode(self._access.listed())

    async def _on_revoke(self, body: bytes, by: str) -> bytes:
        text = await self._access.revoke(codec.decode_json(Revoke, body, "access.revoke"))
        await self._submit(Annotate(text=text), by, "")  # so that it is on record
        return codec.encode(Answer(ok=True, text=text))

    async def _submit(self, want: Want, by: str, session: str, called: str = "") -> bytes:
        number = f"r{self._epoch}.{next(self._numbers)}"
        # Ids are unique per person: two people may use the same one.
        sent_as = f"{by}.{called}" if called else ""
        request = Request(id=number, want=want, by=by, session=session, sent_as=sent_as)
        _log.info("request: %s", summarise("request", msgspec.to_builtins(request)))
        answer = self._open[request.id] = asyncio.get_running_loop().create_future()
        self._enter(request)
        reply = await asyncio.wait_for(answer, _PATIENCE_S)
        if self._durable is not None and not isinstance(want, StopActions | ResumeActions):
            # What was promised survives the loss of this host; without standbys it is on its disk.
            with suppress(TimeoutError):
                async with asyncio.timeout(_DURABLE_S if self._is_alone() else None):
                    await self._durable()
        return codec.encode(Answer(ok=reply.ok, text=reply.text, ids=reply.ids))
