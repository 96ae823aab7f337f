"""Lets the ranks of a torchft run agree on changes ahead of each step, and make them with it.

A Manager's quorum request has the handle of its process group; the lighthouse answers all members
alike, with all handles. A ballot in the handle costs no collective, and all members see if a group
has none, because it runs without torchLoom or with another version of the ballots. The ballots are
counted when the quorum arrives, before any state is loaded and before any collective of the step.
"""

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.fence.agreement import Ballot, is_behind, read_minima, tally
from torchloom_threadlet.trainer.worker import Worker

VERSION = 1
"""The ballots' version: groups of two versions do not vote with each other."""

_KEY = "torchloom"
_LARGEST = 2**63 - 2
"""The largest number that the ranks of a group can reduce."""

_logger = logging.getLogger(__name__)


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


class FencedSteps:
    """The fenced steps of one Manager.

    Each rank gets the ballots of the ranks with its number in the other groups. In a group of
    several ranks these reduce the ballots once more: all get one outcome, or none of them gets
    any. Where that is not possible, or where a group of the quorum does not vote, no rank votes,
    and fenced changes are refused.
    """

    def __init__(self, manager: Any, worker: Worker) -> None:
        obstacle = _obstacle(manager)
        worker.changes.can_vote = not obstacle
        if obstacle:
            _logger.warning("fenced changes are not possible: %s", obstacle)
            return
        self._manager = manager
        self._worker = worker
        self._own = Vote(0, Ballot(0, 0, 0, 0))
        self._is_answered = False
        self._all_vote = True
        self._trouble = ""
        self._steps_back = False
        self._start_quorum = manager.start_quorum
        self._wait_quorum = manager.wait_quorum
        self._should_commit = manager.should_commit
        self._load_state = manager._apply_pending_state_dict
        manager.start_quorum = self._started
        manager.wait_quorum = self._waited
        manager.should_commit = self._committed
        manager._apply_pending_state_dict = self._loaded
        Ballots(manager, self._cast, self._take_votes)
        if isinstance(manager._pg, CompressedProcessGroup):
            manager._pg.takes_order = not manager._use_async_quorum
        self._give_with_the_state()

    # --- the thread that requests the quorum ----------------------------------------------------

    def _cast(self) -> Vote:
        self._own = Vote(self._manager._step, self._worker.changes.vote(time.time_ns()))
        return self._own

    def _take_votes(self, votes: list[Vote] | None, quorum: Any) -> None:
        """Count the votes; the training thread acts on the result once it has the quorum."""
        self._trouble, self._steps_back = "", False
        try:
            self._count([self._own] if votes is None else votes, all_vote=votes is not None)
        except Exception as error:  # noqa: BLE001 - another rank of the group may have died
            self._trouble = f"the ranks of this group did not vote: {error_line(error)}"
        if votes is not None:
            self._reorder(quorum, max(vote.ballot.attempt for vote in votes))
        self._is_answered = True

    def _reorder(self, quorum: Any, attempt: int) -> None:
        """Reorder the ring by the members' handles, where the Manager does not do it anyway.

        All have the same answer, so all do it, or none; this step's collectives come later.
        """
        pg = self._manager._pg
        if not isinstance(pg, CompressedProcessGroup) or not pg.takes_order:
            return
        if quorum.quorum_id != self._manager._quorum_id:
            return
        try:
            pg.reorder(quorum.reconfigure_handles, attempt)
        except Exception as error:  # noqa: BLE001 - a peer may have died meanwhile
            self._trouble = self._trouble or f"the ring has no new order: {error_line(error)}"

    def _count(self, votes: list[Vote], *, all_vote: bool) -> None:
        least, largest = tally(votes)
        if self._manager._group_world_size > 1:
            # On each rank, whatever its votes: the others wait for it here.
            voting, *minima = self._within(int(all_vote), *least, *(-n for n in largest))
            all_vote, (least, largest) = bool(voting), read_minima(tuple(minima))
        self._all_vote = all_vote
        if not all_vote or self._worker.changes.count(least, largest):
            return
        is_late = self._own.step < max(votes).step
        own = self._own.ballot.withheld() if is_late else self._own.ballot
        self._trouble = "the ranks differ in the steps that they have made"
        self._steps_back = is_behind(own, largest)
        if self._manager._group_world_size > 1:  # a group's ranks decide together
            self._steps_back = not self._within(int(not self._steps_back))[0]

    def _within(self, *numbers: int) -> tuple[int, ...]:
        """Reduce numbers with the other ranks of the group, to the least."""
        return _reduced(numbers, self._manager._timeout)

    # --- the training thread -----------------------------------------------------------------

    def _started(self, *args: Any, **kwargs: Any) -> Any:
        self._worker.make_due(knobs_only=True)
        self._is_answered = False
        result = self._start_quorum(*args, **kwargs)
        self._take_in()
        return result

    def _waited(self) -> Any:
        result = self._wait_quorum()
        # A synchronous quorum is waited for before a peer's state is loaded.
        if self._manager._use_async_quorum:
            self._take_in()
        return result

    def _take_in(self) -> None:
        """Act, once a step, on the counted ballots, before anything is reduced."""
        if not self._is_answered:
            return
        self._is_answered = False
        self._note_voters()
        if isinstance(self._manager._pg, CompressedProcessGroup):
            # All members know that one does not vote; it may not compress either.
            self._manager._pg.is_plain = not self._all_vote
        if self._steps_back:  # torchft makes a group that counts less load a peer's state
            self._manager._step = max(0, self._manager._step - 1)
        if self._trouble:
            self._manager.report_error(RuntimeError(self._trouble))
        if self._worker.changes.must_undo:
            self._worker.set_back()

    def _committed(self, *args: Any, **kwargs: Any) -> Any:
        quorum_id = None
        try:
            committed = self._should_commit(*args, **kwargs)
            quorum_id = self._manager._quorum_id if committed else None
            return committed
        finally:
            self._worker.changes.end_step(quorum_id)
            if isinstance(self._manager._pg, CompressedProcessGroup):
                self._manager._pg.end_step(quorum_id is not None)
            self._worker.has_pending |= self._worker.changes.due is not None

    def _note_voters(self) -> None:
        """Report to the Weaver whether the ranks of this quorum can agree on changes."""
        changes, all_vote = self._worker.changes, self._all_vote
        if changes.can_vote == all_vote:
            return
        changes.can_vote = all_vote
        if not all_vote:
            knobs = ", ".join(self._worker.actuators.fenced_values())
            _logger.warning(
                "fenced changes are not possible: a group of this quorum is not attached to "
                "torchLoom, or to another version of it, and may differ in %s",
                knobs or "its knobs",
            )
        self._worker.announce()

    # --- the state that a peer loads, in torchft's thread --------------------------------------

    def _loaded(self) -> None:
        pending = self._manager._pending_state_dict
        if pending is not None:
            pending["user"].setdefault(_KEY, "")  # from a peer that is not attached
        self._load_state()

    def _take_over(self, standing: str) -> None:
        if not standing:
            return
        self._worker.take_over(standing)
        if self._worker.changes.is_short:
            self._manager.report_error(RuntimeError("the peer lacked the agreed change"))

    def _give_with_the_state(self) -> None:
        """Give the knobs with the state, to be set before it is loaded: they may shape it."""
        manager, worker = self._manager, self._worker
        manager.register_state_dict_fn(
            _KEY,
            self._take_over,
            lambda: worker.changes.standing(worker.actuators.fenced_values()),
        )
        loads = manager._load_state_dict_fns
        manager._load_state_dict_fns = {_KEY: loads[_KEY]} | loads


def _obstacle(manager: Any) -> str:
    """Return why the ranks of this group cannot agree with each other, or "" if they can."""
    ranks = manager._group_world_size
    if ranks == 1:
        return ""
    if manager._use_async_quorum:
        return f"need use_async_quorum=False in a group of {ranks} ranks"
    size = dist.get_world_size() if dist.is_initialized() else 0
    if size != ranks:
        was = f"one of {size}" if size else "none"
        return f"need a default process group of this group's {ranks} ranks, was {was}"
    return ""


def _reduced(numbers: tuple[int, ...], timeout: timedelta) -> tuple[int, ...]:
    backend = str(dist.get_backend_config())
    device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
    least = torch.tensor(numbers, dtype=torch.int64, device=device)
    work = dist.all_reduce(least, dist.ReduceOp.MIN, async_op=True)
    if work is not None:
        work.wait(timeout)  # a rank that is not attached never joins
    return tuple(least.tolist())
