"""At which step the ranks save: if one requests it, all do, the same few steps later.

Each rank sends its request at each step boundary, and takes the outcome ``LAG`` boundaries later,
when it has long arrived: so all ranks take it at the same step, and none waits.
"""

import logging
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

LAG = 4
NOTHING, SAVE, LEAVE = 0, 1, 2
_OVER = 3

_logger = logging.getLogger(__name__)


class SaveRequests:
    """The requests of the ranks of a gloo group that nothing else uses; None: one rank alone."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._is_over = False

    @property
    def lag(self) -> int:
        """Step boundaries between a request and its outcome."""
        return 0 if self._group is None else LAG

    def exchange(self, request: int) -> int:
        """Send this rank's request, and return the largest of all ranks ``lag`` boundaries ago."""
        if self._group is None or self._is_over:
            return request if self._group is None else NOTHING
        self._send(request)
        if len(self._sent) <= LAG:
            return NOTHING
        work, requests = self._sent.popleft()
        try:
            work.wait()
        except RuntimeError:
            self._is_over = True
            return NOTHING
        agreed = int(requests[0])
        self._is_over |= agreed == _OVER
        return NOTHING if self._is_over else agreed

    def close(self) -> None:
        """Announce that this rank's loop has ended: nothing is saved together any more."""
        if self._group is not None and not self._is_over:
            self._is_over = True
            self._send(_OVER)

    def _send(self, request: int) -> None:
        requests = torch.tensor([request])
        try:
            work = dist.all_reduce(requests, dist.ReduceOp.MAX, group=self._group, async_op=True)
        except (RuntimeError, ValueError):
            self._is_over = True
        else:
            self._sent.append((work, requests))
