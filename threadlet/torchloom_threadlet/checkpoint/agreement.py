"""At which step the ranks save: if one requests it, all do, the same few steps later.

Each rank sends its requests at each step boundary, and takes the outcome ``LAG`` boundaries later,
when it has long arrived: so all ranks take it at the same step, and none waits.
"""

from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

LAG = 4
_GOES_ON, _LEAVES, _OVER = 0, 1, 2


class Requests(NamedTuple):
    """What a rank asks of all, and what all are asked.

    ``tiers``: for each tier whether to save in it. ``leave``: save and leave. What rank 0 knows
    first: ``is_any``, whether there is a complete checkpoint, and ``good``, which is the newest in
    the memory of nodes, a number that rises; 0: none. ``full``: the next checkpoint that might be
    small must not be. ``lost``: one more than the step of a save that a rank could not make, for
    which rank 0 need not wait; 0: none.
    """

    tiers: tuple[bool, ...]
    leave: bool = False
    is_any: bool = False
    good: int = 0
    full: bool = False
    lost: int = 0


class SaveRequests:
    """The requests of the ranks of a gloo group that nothing else uses; None: one rank alone.

    Attributes
    ----------
    unheard : int
        What this rank sent as ``lost`` in the last outcome, if another rank's came in its place; 0:
        none.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._sent: deque[tuple[Any, torch.Tensor, int]] = deque()
        self._tiers = 0
        self.unheard = 0
        self._is_over = False

    @property
    def lag(self) -> int:
        """Step boundaries between a request and its outcome."""
        return 0 if self._group is None else LAG

    def exchange(self, requests: Requests) -> Requests | None:
        """Send this rank's requests, and return those of all ranks ``lag`` boundaries ago.

        None: there are none yet, or a rank has ended.
        """
        if self._group is None:
            return requests
        if self._is_over:
            return None
        self._tiers = len(requests.tiers)
        self._send(_LEAVES if requests.leave else _GOES_ON, requests)
        self.unheard = 0
        if len(self._sent) <= LAG:
            return None
        work, values, own_lost = self._sent.popleft()
        try:
            work.wait()
        except RuntimeError:
            self._is_over = True
            return None
        state, is_any, good, full, lost, *tiers = values.tolist()
        self._is_over |= state == _OVER
        if self._is_over:
            return None
        self.unheard = own_lost if own_lost != lost else 0
        asked = tuple(map(bool, tiers))
        return Requests(asked, state == _LEAVES, bool(is_any), good, bool(full), lost)

    def close(self) -> None:
        """Announce that this rank's loop has ended: nothing is saved together any more."""
        if self._group is not None and not self._is_over:
            self._is_over = True
            self._send(_OVER, Requests((False,) * self._tiers))

    def _send(self, state: int, requests: Requests) -> None:
        known = (requests.is_any, requests.good, requests.full, requests.lost)
        values = torch.tensor([state, *known, *requests.tiers], dtype=torch.int64, device="cpu")
        try:
            work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        except (RuntimeError, ValueError):
            self._is_over = True
        else:
            self._sent.append((work, values, requests.lost))
