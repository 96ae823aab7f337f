"""Have the ranks of a torchft run agree on changes ahead of each step, and make them with it.

The ballots are reduced over the Manager's own process group, once the quorum stands and whoever was
behind has a peer's state, before any other collective of the step.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.fence.agreement import read_minima
from torchloom_threadlet.torchft.voters import Voters
from torchloom_threadlet.trainer.worker import Worker, says

_KEY = "torchloom"

_logger = logging.getLogger(__name__)


class FencedSteps:
    """The steps of one Manager.

    With a synchronous quorum the ranks vote at the end of ``start_quorum``. With an asynchronous
    one, when it is first waited for; whoever still heals then abstains.

    In a group of several ranks each reduces with those of its own number in the other groups, and
    then the group reduces that once more: they have one outcome, or none of them has any. Where
    that cannot be, or where a group of the quorum does not vote, nobody does, and what is fenced
    is refused.
    """

    def __init__(self, manager: Any, worker: Worker) -> None:
        obstacle = _obstacle(manager)
        worker.changes.can_vote = not obstacle
        if obstacle:
            _logger.warning("nothing can be changed on all ranks at one step: %s", obstacle)
            return
        self._manager = manager
        self._worker = worker
        self._is_open = False
        self._falls_behind = False
        self._voters = Voters(manager._pg)
        self._start_quorum = manager.start_quorum
        self._wait_quorum = manager.wait_quorum
        self._should_commit = manager.should_commit
        self._load_state = manager._apply_pending_state_dict
        manager._apply_pending_state_dict = self._loaded
        manager.start_quorum = self._started
        manager.should_commit = self._committed
        if manager._use_async_quorum:
            manager.wait_quorum = self._waited
        self._give_with_the_state()
        worker.fall_behind = self._fall_behind

    def _started(self, *args: Any, **kwargs: Any) -> Any:
        self._safely(lambda: self._worker.make_due(knobs_only=True))
        self._is_open = False
        result = self._start_quorum(*args, **kwargs)
        self._is_open = True
        if not self._manager._use_async_quorum:
            self._vote_once()
        return result

    def _waited(self) -> Any:
        result = self._wait_quorum()
        self._vote_once()
        return result

    def _committed(self, *args: Any, **kwargs: Any) -> Any:
        quorum_id = None
        try:
            committed = self._should_commit(*args, **kwargs)
            quorum_id = self._manager._quorum_id if committed else None
            return committed
        finally:
            self._is_open = False
            self._worker.changes.end_step(quorum_id)
            if isinstance(self._manager._pg, CompressedProcessGroup):
                self._manager._pg.end_step(quorum_id is not None)
            self._worker.attention |= self._worker.changes.due is not None

    def _vote_once(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._note_who_votes()
        if not self._voters.all_vote:
            return
        # A group's other ranks count on one that has an error, too: they wait for its word.
        if self._manager.errored() is None or self._manager._group_world_size > 1:
            self._safely(self._vote)
        if self._worker.changes.must_undo:
            self._worker.set_back()

    def _note_who_votes(self) -> None:
        """Have the Weaver know whether the ranks of this quorum can agree on anything."""
        changes, all_vote = self._worker.changes, self._voters.all_vote
        if changes.can_vote == all_vote:
            return
        changes.can_vote = all_vote
        if not all_vote:
            _logger.warning(
                "nothing can be changed on all ranks at one step: a group of this quorum is not "
                "attached to torchLoom, or to another version of it"
            )
        self._worker.send(self._worker.hello())

    def _vote(self) -> None:
        worker, changes = self._worker, self._worker.changes
        own = changes.vote(time.time_ns(), abstain=self._manager._healing)
        worker.phases.begin("allreduce")
        try:
            minima = self._reduced(own)
        finally:
            worker.phases.end("allreduce")
        count = changes.count(*read_minima(minima))
        if count.split:
            # Whoever is behind takes a peer's state, as one that is a step behind does.
            if self._is_group_behind(count.behind):
                self._step_back()
            self._manager.report_error(RuntimeError("the ranks have not all made the same steps"))

    def _reduced(self, own: tuple[int, ...]) -> tuple[int, ...]:
        if self._manager._group_world_size == 1:
            return self._across(own)
        error: Exception | None = None
        outcome = own
        goes_on = self._manager.errored() is None
        if goes_on:
            try:
                outcome = self._across(own)
            except Exception as caught:  # noqa: BLE001 - the group waits for this rank's word
                goes_on, error = False, caught
        sound = (goes_on, not self._falls_behind)
        all_go_on, none_falls_behind, *minima = _within((*map(int, sound), *outcome))
        self._falls_behind = False
        if not none_falls_behind:
            self._step_back()
        if not all_go_on or not none_falls_behind:
            raise error or RuntimeError("a rank of this group has failed the step")
        return tuple(minima)

    def _across(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Reduce with the ranks of the same number in all groups."""
        pg = self._manager._pg
        if pg.size() == 1:
            return own
        ballots = _tensor(own, pg.getBackendName())
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        pg.allreduce([ballots], opts).wait()
        return tuple(ballots.tolist())

    def _is_group_behind(self, own: bool) -> bool:
        """Say whether any rank of the group is: they count their steps alike."""
        if self._manager._group_world_size == 1:
            return own
        return not _within((int(not own),))[0]

    def _safely(self, function: Callable[[], None]) -> None:
        """Have a step fail, and not the trainer, where a vote has no outcome."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - a peer may have died
            _logger.info("this step has no vote: %s", says(error))
            self._manager.report_error(error)

    def _fall_behind(self) -> None:
        if self._manager._group_world_size == 1:
            self._step_back()
        else:  # a group counts its steps alike: the others hear of it with the next vote
            self._falls_behind = True

    def _step_back(self) -> None:
        """Count a step less, so that torchft has this group take a peer's state."""
        self._manager._step -= 1

    def _loaded(self) -> None:
        pending = self._manager._pending_state_dict
        if pending is not None:
            pending["user"].setdefault(_KEY, "")  # of a peer that is not attached
        self._load_state()

    def _take_over(self, standing: str) -> None:
        if not standing:
            return
        self._worker.take_over(standing)
        if self._worker.changes.is_short:
            self._manager.report_error(RuntimeError("the peer had not what was agreed on"))

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
    """Return why the ranks of this group cannot agree with each other, or nothing."""
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


def _within(least: tuple[int, ...]) -> tuple[int, ...]:
    """Reduce with the other ranks of the group, to the least."""
    ballots = _tensor(least, str(dist.get_backend_config()))
    dist.all_reduce(ballots, dist.ReduceOp.MIN)
    return tuple(ballots.tolist())


def _tensor(numbers: tuple[int, ...], backend: str) -> torch.Tensor:
    """Return the numbers where a backend, or the devices of several, can reduce them."""
    device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
    return torch.tensor(numbers, dtype=torch.int64, device=device)
