"""Drops join requests before they are read: too many of one connection, or too many in all.

All joiners are one user, so the server describes the connection of each request in a header, which
it writes itself. A connection that goes on is closed; a herd's have one or two requests each.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.quota import Quota
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import Notice

_OF_ONE = {"per_s": 5.0, "rest_s": 4.0}
"""A worker asks at first after 0.2 s or more again, and later every few seconds."""

_IN_ALL = {"per_s": 500.0, "bytes_per_s": 1e6, "rest_s": 40.0}
_CLOSED_AFTER = 20
"""So many dropped requests close a connection."""

_MOST_KNOWN = 10_000
_NOTICE_EVERY_NS = 60 * SECOND_NS

_HEADER = b"\r\nNats-Request-Info:"
_CHANGES = b'"rtt":'
"""What comes before it in the description is the same in all requests of a connection."""

_END = b"\r\n"


class Sender(NamedTuple):
    """A client's connection: its number at the server of this name, and the host it comes from."""

    server: str
    number: int
    host: str


class _Described(msgspec.Struct):
    server: str
    id: int
    host: str = ""


_decoder = msgspec.json.Decoder(_Described)


class JoinGate:
    """Whether a request is passed on; ``close`` closes a connection that sends too many.

    ``report`` gets a notice, at most one a minute.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        close: Callable[[Sender], None],
        report: Callable[[Notice], None],
    ) -> None:
        self._now_ns = now_ns
        self._close = close
        self._report = report
        self._of_one = Quota(**_OF_ONE)
        self._in_all = Quota(**_IN_ALL)
        self._dropped: Counter[Sender] = Counter()
        self._flooding: dict[bytes, Sender] = {}
        self._quiet_until_ns = 0

    def admits(self, subject: str, size: int, headers: bytes) -> bool:
        """Return whether the request is within the limits."""
        now_ns = self._now_ns()
        # The last one: the server appends its own, and no line break can be in it.
        described = headers[headers.rfind(_HEADER) :] if headers else b""
        known_by = described[: described.find(_CHANGES)]
        sender = self._flooding.get(known_by)
        if sender is None:  # decoding takes longer than all else here
            sender = _sender(described)
            if sender is None or self._of_one.takes(f"{sender.server} {sender.number}", now_ns):
                return self._in_all.takes(subject, now_ns, size)
        self._dropped[sender] += 1
        if self._dropped[sender] % _CLOSED_AFTER == 0:
            self._flooding[known_by] = sender
            self._close(sender)
            self._note(sender, now_ns)
        for table in (self._dropped, self._flooding):
            if len(table) > _MOST_KNOWN:
                table.clear()
        return False

    def _note(self, sender: Sender, now_ns: int) -> None:
        if now_ns < self._quiet_until_ns:
            return
        self._quiet_until_ns = now_ns + _NOTICE_EVERY_NS
        text = (
            f"a process on {sender.host} floods the Weaver with join requests: its connection is "
            "closed; if it comes back, `torchloom credentials revoke --join` ends it"
        )
        self._report(Notice(kind="flood", text=text))


def _sender(described: bytes) -> Sender | None:
    if not described.startswith(_HEADER):
        return None
    try:
        found = _decoder.decode(described[len(_HEADER) : described.find(_END, len(_HEADER))])
    except UNREADABLE:
        return None
    return Sender(found.server, found.id, found.host)
