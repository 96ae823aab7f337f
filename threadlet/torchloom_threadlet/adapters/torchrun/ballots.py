"""The ballots of one rank over a process group with fixed ranks.

Only a rank with a pending change, or one that has just made a change, needs the outcome of a vote:
nothing is agreed without its ballot. So each ballot is sent without waiting, and a rank without a
pending change continues, even if another rank's loop has ended and never votes again.
"""

from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchloom_threadlet.fence.agreement import Ballot


class Outcome(NamedTuple):
    """The outcome of a vote of all ranks.

    ``step``: the least of the ranks' numbers of this step.
    ``minima``: as :func:`~torchloom_threadlet.fence.agreement.read_minima` reads them.
    """

    step: int
    minima: tuple[int, ...]


class Ballots:
    """Ballots whose outcome is not taken yet.

    ``are_over``: whether a rank has left the votes, or is gone.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._cast: deque[tuple[Any, torch.Tensor]] = deque()
        self.are_over = False

    def cast(self, step: int, minima: tuple[int, ...]) -> None:
        """Send this rank's ballot for a step."""
        self._send((1, step, *minima))

    def leave(self) -> None:
        """Announce that this rank votes no more."""
        if not self.are_over:
            self.are_over = True
            self._send((0,) * (2 + 2 * len(Ballot._fields)))

    def _send(self, numbers: tuple[int, ...]) -> None:
        ballot = torch.tensor(numbers, dtype=torch.int64)
        try:
            work = dist.all_reduce(ballot, dist.ReduceOp.MIN, group=self._group, async_op=True)
        except (RuntimeError, ValueError):  # the process group is gone
            self.are_over = True  # without this ballot no rank has an outcome
        else:
            self._cast.append((work, ballot))

    def look(self) -> None:
        """Take outcomes that have arrived; wait for nothing."""
        while self._cast and not self.are_over and self._cast[0][0].is_completed():
            try:
                self._take()
            except RuntimeError:
                self.are_over = True  # a rank is gone, and this one had no pending change

    def outcome(self) -> Outcome | None:
        """Wait for the outcome of the last ballot; None if a rank votes no more.

        Raises RuntimeError if a rank is gone: another may know an outcome that this one does not.
        """
        taken = None
        while self._cast and not self.are_over:
            taken = self._take()
        return None if self.are_over else taken

    def _take(self) -> Outcome:
        work, ballot = self._cast.popleft()
        work.wait()
        goes_on, step, *minima = ballot.tolist()
        self.are_over |= not goes_on
        return Outcome(step, tuple(minima))
