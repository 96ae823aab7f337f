"""Whether all groups of a quorum vote: a ballot must not meet a peer's gradients.

A group that runs without torchLoom, or with another version, would take a ballot for its own next
collective, and gloo ends both processes. So each group that votes says so in the handle by which
its process group is found, which the lighthouse hands to all members of a quorum alike.
"""

import json
from typing import Any

VOTE = 1
"""The version of the ballots."""

_KEY = "torchloom_vote"


class Voters:
    """The members of the present quorum of one process group.

    Attributes
    ----------
    all_vote : bool
        Whether every member votes, by these ballots; the same on all of them.
    """

    def __init__(self, pg: Any) -> None:
        self.all_vote = True
        self._handle, self._reconfigure = pg.get_reconfigure_handle, pg.reconfigure
        pg.get_reconfigure_handle, pg.reconfigure = self._marked_handle, self._reconfigured

    def _marked_handle(self) -> str:
        handle = self._handle()
        try:
            return json.dumps({**json.loads(handle), _KEY: VOTE})
        except (ValueError, TypeError):  # a process group of the user's own
            return str(handle)

    def _reconfigured(self, opts: Any) -> Any:
        self.all_vote = all(map(_votes, opts.handles))
        return self._reconfigure(opts)


def _votes(handle: str) -> bool:
    try:
        return bool(json.loads(handle).get(_KEY) == VOTE)
    except (ValueError, AttributeError):
        return False
