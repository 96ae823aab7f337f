"""The desk where people's requests come in: NATS requests to kernel inputs and back.

See :mod:`torchloom_core.control` for the verbs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

import msgspec

from torchloom_core import codec
from torchloom_core.actions import Action, ChangeKnob
from torchloom_core.control import Answer, KnobSet, KnobTable, KnobUnset, Status
from torchloom_core.decisions import Reply
from torchloom_core.errors import MessageError
from torchloom_core.requests import (
    Approve,
    ForgetKnob,
    Propose,
    Request,
    ResumeActions,
    StopActions,
    Want,
)

_PATIENCE_S = 10.0

_T = TypeVar("_T")


class _Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Action


class _Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    proposal: str


class Desk:
    """Turns requests into kernel inputs and waits for the kernel's reply.

    Parameters
    ----------
    epoch : int
        The Weaver's epoch, part of every request's id.
    enter : callable
        Hands a request to the kernel.
    status, knobs : callable
        Describe the run for the verbs that only read.
    """

    def __init__(
        self,
        epoch: int,
        enter: Callable[[Request], None],
        status: Callable[[], Status],
        knobs: Callable[[], KnobTable],
    ) -> None:
        self._epoch = epoch
        self._enter = enter
        self._status = status
        self._knobs = knobs
        self._numbers = count(1)
        self._open: dict[str, asyncio.Future[Reply]] = {}

    @property
    def verbs(self) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
        """The handlers, by verb."""
        return {
            "status": self._on_status,
            "knobs": self._on_knobs,
            "knob.set": self._on_knob_set,
            "knob.unset": self._on_knob_unset,
            "propose": self._on_propose,
            "approve": self._on_approve,
            "actions.stop": self._on_stop,
            "actions.resume": self._on_resume,
        }

    def reply(self, reply: Reply) -> None:
        """Pass the kernel's reply on to whoever asked."""
        waiting = self._open.pop(reply.request, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    async def _on_status(self, _: bytes) -> bytes:
        return codec.encode(self._status())

    async def _on_knobs(self, _: bytes) -> bytes:
        return codec.encode(self._knobs())

    async def _on_knob_set(self, body: bytes) -> bytes:
        wish = _decode(body, KnobSet, "knob.set")
        action = ChangeKnob(knob=wish.knob, value=wish.value, worker=wish.worker)
        return await self._ask(Propose(action=action))

    async def _on_knob_unset(self, body: bytes) -> bytes:
        wish = _decode(body, KnobUnset, "knob.unset")
        return await self._ask(ForgetKnob(knob=wish.knob, worker=wish.worker))

    async def _on_propose(self, body: bytes) -> bytes:
        return await self._ask(Propose(action=_decode(body, _Proposal, "propose").action))

    async def _on_approve(self, body: bytes) -> bytes:
        return await self._ask(Approve(proposal=_decode(body, _Approval, "approve").proposal))

    async def _on_stop(self, _: bytes) -> bytes:
        return await self._ask(StopActions())

    async def _on_resume(self, _: bytes) -> bytes:
        return await self._ask(ResumeActions())

    async def _ask(self, want: Want) -> bytes:
        request = Request(id=f"r{self._epoch}.{next(self._numbers)}", want=want)
        answer = self._open[request.id] = asyncio.get_running_loop().create_future()
        self._enter(request)
        reply = await asyncio.wait_for(answer, _PATIENCE_S)
        return codec.encode(Answer(ok=reply.ok, text=reply.text, ids=reply.ids))


def _decode(body: bytes, cls: type[_T], verb: str) -> _T:
    try:
        return msgspec.json.decode(body, type=cls)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"{verb}: {error}") from None
