"""Forward a page's requests to the Weaver: a fixed list of verbs, each with the page's session.

The dashboard has no rights of its own: it sends requests with the credentials that it was started
with, as the command line does, and the Weaver decides.
"""

from collections import OrderedDict
from typing import Any

import msgspec

from torchloom_core.floor.errors import RequestError
from torchloom_core.live.dashboard.rate_limit import RateLimit
from torchloom_core.live.transport.operator import ControlClient
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.operator import Answer

VERBS = frozenset(
    {
        "knob.set",
        "knob.unset",
        "propose",
        "approve",
        "deny",
        "actions.stop",
        "actions.resume",
        "annotate",
        "control.take",
        "control.release",
    }
)
"""Verbs that a page may use; no other is forwarded."""

MOST_BYTES = 65_536
_ANSWER_S = 5.0
_TRIES = 2
_PER_S, _AT_ONCE = 10.0, 20
_MOST_SESSIONS = 1000
_STOP = "actions.stop"
_FROM_SESSION = frozenset({"actions.stop", "actions.resume", "control.release"})
"""Verbs whose body is only the session."""


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page's request: the name its user gave, and the body of the verb."""

    name: str
    body: dict[str, Any] = {}


class PageRequests:
    """Forwards the requests of pages."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._allowances: OrderedDict[tuple[str, bool], RateLimit] = OrderedDict()

    async def forward(self, verb: str, data: bytes, session: str) -> Answer:
        """Return the Weaver's answer, or the reason for a refusal.

        ``session`` is the browser's own: a page cannot use another one.
        """
        if verb not in VERBS:
            return Answer(ok=False, text=f"need one of the page's verbs, was {verb[:64]!r}")
        if not self._allowance(verb, session).is_taken():
            return Answer(ok=False, text=f"{verb}: need at most {_PER_S:g} requests a second")
        try:
            request = msgspec.json.decode(data, type=PageRequest)
        except UNREADABLE as error:
            return Answer(ok=False, text=f"{verb}: {error}")
        body = {} if verb in _FROM_SESSION else dict(request.body)
        body["session"] = f"{request.name}.{session}"
        try:
            reply = await self._client.ask(verb, msgspec.json.encode(body), _ANSWER_S, _TRIES)
            return msgspec.json.decode(reply, type=Answer)
        except RequestError as error:
            return Answer(ok=False, text=str(error))
        except UNREADABLE as error:
            return Answer(ok=False, text=f"{verb}: the Weaver's answer cannot be read: {error}")

    def _allowance(self, verb: str, session: str) -> RateLimit:
        """Return a browser's own limit; the kill switch has a separate one."""
        whose = session, verb == _STOP
        if whose not in self._allowances:
            self._allowances[whose] = RateLimit(_PER_S, _AT_ONCE)
            if len(self._allowances) > _MOST_SESSIONS:
                self._allowances.popitem(last=False)
        self._allowances.move_to_end(whose)
        return self._allowances[whose]
