"""Ballots that travel with a group's quorum request, and return with the quorum.

At each step a Manager requests a quorum and sends the handle of its process group; the lighthouse
answers all members alike, with all handles. A ballot in the handle costs no collective, and all
members see if a group has none, because it runs without torchLoom or with another version of the
ballots.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from torchloom_threadlet.fence.agreement import Ballot

VERSION = 1
"""The ballots' version: groups of two versions do not vote with each other."""

_KEY = "torchloom"
_LARGEST = 2**63 - 2
"""The largest number that the ranks of a group can reduce."""


class Vote(NamedTuple):
    """A group's ballot, and its step at the request."""

    step: int
    ballot: Ballot


class Ballots:
    """The ballots of one Manager's quorums.

    ``cast``: returns this rank's vote; called once per request, in the requesting thread.
    ``count``: gets the votes of all members, or None if not all vote, and the quorum. Called in
    that thread, before the process group is reconfigured or any state is loaded.
    """

    def __init__(
        self,
        manager: Any,
        cast: Callable[[], Vote],
        count: Callable[[list[Vote] | None, Any], None],
    ) -> None:
        self._cast, self._count = cast, count
        self._handle = manager._pg.get_reconfigure_handle
        self._client = manager._client
        manager._pg.get_reconfigure_handle = self._handle_with_ballot
        manager._client = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        quorum = self._client._quorum(*args, **kwargs)
        votes = [_read(handle) for handle in quorum.reconfigure_handles]
        self._count([vote for vote in votes if vote is not None] if all(votes) else None, quorum)
        return quorum

    def _handle_with_ballot(self) -> str:
        handle = self._handle()
        try:
            fields = dict(json.loads(handle))
        except (ValueError, TypeError):  # a process group of the user's own
            return str(handle)
        step, ballot = self._cast()
        return json.dumps({**fields, _KEY: [VERSION, step, *ballot]})


def _read(handle: str) -> Vote | None:
    """Return the vote in a handle, or None if its group does not vote with this version."""
    try:
        version, step, *ballot = json.loads(handle)[_KEY]
        numbers = (step, *ballot)
        if version != VERSION or not all(type(n) is int and 0 <= n <= _LARGEST for n in numbers):
            return None
        return Vote(step, Ballot(*ballot))
    except (ValueError, TypeError, KeyError, RecursionError):  # any member's, so unchecked
        return None
