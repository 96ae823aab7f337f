"""The ballots of one rank over a process group whose ranks never change.

Only a rank that holds a change, or has just made one, has to know the outcome of a vote: nothing is
agreed without it. So each ballot is sent without waiting, and a rank that holds nothing goes on,
even where another's loop has ended and it will never vote again.
"""

from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchloom_threadlet.fence.agreement import Ballot


class Outcome(NamedTuple):
    """What the ballots of all ranks came to.

    Attributes
    ----------
    step : int
        The least of what the ranks call this step.
    minima : tuple of int
        As :func:`~torchloom_threadlet.fence.agreement.read_minima` reads them.
    """

    step: int
    minima: tuple[int, ...]


class Ballots:
    """Those that were cast and not looked at.

    Attributes
    ----------
    are_over : bool
        Whether a rank has said that it votes no more, or is gone.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._cast: deque[tuple[Any, torch.Tensor]] = deque()
        self.are_over = False

    def cast(self, step: int, minima: tuple[int, ...]) -> None:
        """Send what this rank says of a step."""
        self._send((1, step, *minima))

    def leave(self) -> None:
        """Say that this rank votes no more."""
        if not self.are_over:
            self.are_over = True
            self._send((0,) * (2 + 2 * len(Ballot._fields)))

    def _send(self, numbers: tuple[int, ...]) -> None:
        ballot = torch.tensor(numbers, dtype=torch.int64)
        try:
            work = dist.all_reduce(ballot, dist.ReduceOp.MIN, group=self._group, async_op=True)
        except (RuntimeError, ValueError):  # the process group is gone
            self.are_over = True  # and without this ballot nobody has an outcome
        else:
            self._cast.append((work, ballot))

    def look(self) -> None:
        """Take in what others have said by now; wait for nothing."""
        while self._cast and not self.are_over and self._cast[0][0].is_completed():
            try:
                self._take()
            except RuntimeError:
                self.are_over = True  # a rank is gone, and this one held nothing

    def outcome(self) -> Outcome | None:
        """Wait for the outcome of the last ballot; None if a rank votes no more.

        Raises
        ------
        RuntimeError
            If a rank is gone: another may know an outcome that this one does not.
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
