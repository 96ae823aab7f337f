"""Ballots that travel with a group's request for a quorum, and come back with its answer.

At each step a Manager asks for a quorum and says, among other things, by which handle its process
group is found; the lighthouse gives all members one answer, with everybody's handle. A ballot in
the handle costs no collective, and a group that has none, since it runs without torchLoom or with
another version, is seen by all alike.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from torchloom_threadlet.fence.agreement import Ballot

VERSION = 1
"""Of the ballots: groups of two versions do not vote with each other."""

_KEY = "torchloom"
_LARGEST = 2**63 - 2
"""More is no number that the ranks of a group could reduce."""


class Said(NamedTuple):
    """A group's ballot, and the step that it had made as it asked."""

    step: int
    ballot: Ballot


class Ballots:
    """The ballots of one Manager's quorums.

    Parameters
    ----------
    say : callable
        Returns what this rank says; called once a request, in the thread that makes it.
    hear : callable
        Told what all members said, None: not all vote; and the answer itself. Called in that
        thread, before the process group is made anew or any state is loaded.
    """

    def __init__(
        self,
        manager: Any,
        say: Callable[[], Said],
        hear: Callable[[list[Said] | None, Any], None],
    ) -> None:
        self._say, self._hear = say, hear
        self._handle = manager._pg.get_reconfigure_handle
        self._client = manager._client
        manager._pg.get_reconfigure_handle = self._handle_with_ballot
        manager._client = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        quorum = self._client._quorum(*args, **kwargs)
        said = [_read(handle) for handle in quorum.reconfigure_handles]
        self._hear([one for one in said if one is not None] if all(said) else None, quorum)
        return quorum

    def _handle_with_ballot(self) -> str:
        handle = self._handle()
        try:
            fields = dict(json.loads(handle))
        except (ValueError, TypeError):  # a process group of the user's own
            return str(handle)
        step, ballot = self._say()
        return json.dumps({**fields, _KEY: [VERSION, step, *ballot]})


def _read(handle: str) -> Said | None:
    """Return what a handle says, or None: its group does not vote, or not by these ballots."""
    try:
        version, step, *ballot = json.loads(handle)[_KEY]
        numbers = (step, *ballot)
        if version != VERSION or not all(type(n) is int and 0 <= n <= _LARGEST for n in numbers):
            return None
        return Said(step, Ballot(*ballot))
    except (ValueError, TypeError, KeyError, RecursionError):  # whoever is in the quorum said it
        return None
