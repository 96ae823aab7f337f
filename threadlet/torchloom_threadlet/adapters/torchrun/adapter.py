"""The adapter for torchrun, whose ranks stay the same from start to end, and vote at each step.

Only a rank with a pending change, or one that has just made a change, needs the outcome of a vote:
nothing is agreed without its ballot. So each ballot is sent without waiting, and a rank without a
pending change continues, even if another rank's loop has ended and never votes again.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from torchloom_core.wire.operations import Drain
from torchloom_core.wire.start_phases import QUORUM
from torchloom_threadlet.adapter import Adapter, Diverged
from torchloom_threadlet.cleaning import error_line, whole
from torchloom_threadlet.fence.agreement import NOTHING, Ballot, read_minima
from torchloom_threadlet.training.gradients import ManagedOptimizers

_QUORUM = 1
"""The quorum id: all ranks are in one quorum, or there is no run."""

_logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """The outcome of a vote of all ranks.

    ``minima``: as :func:`~torchloom_threadlet.fence.agreement.read_minima` reads them.
    """

    step: int
    minima: tuple[int, ...]


class Ballots:
    """Ballots whose outcome is not taken yet."""

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
        ballot = torch.tensor(numbers, dtype=torch.int64, device="cpu")
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


class TorchrunAdapter(Adapter):
    """Votes at the end of each step, and makes agreed changes there."""

    framework = "torchrun"
    _ballots: Ballots | None = None
    _optimizers: ManagedOptimizers | None = None
    _number: int | None = None
    _agreed_step = -1

    def rejoin(self) -> None:
        """Return at once: no other rank can train without this one."""

    def manage(self, *parts: Any, measure_update: bool = False, process_group: Any = None) -> None:
        """Agree with the ranks of ``process_group``, all by default, and register optimizers."""
        self._join_votes(process_group)
        if parts:
            self._register(parts, measure_update=measure_update)
        self.worker.starting.built()

    def _join_votes(self, process_group: Any = None) -> None:
        """Vote from now on, if ``torch.distributed`` is initialized and a Weaver is expected."""
        if self._ballots is None:
            with self.worker.starting.phase(QUORUM):
                self._begin_votes(process_group)

    def _register(
        self, parts: Sequence[Any], *, measure_update: bool = False, clips: bool = True
    ) -> None:
        """Register the settings of optimizers and of their gradients as knobs."""
        self._optimizers = ManagedOptimizers(
            self.loom,
            parts,
            can_vote=self.worker.changes.can_vote,
            step=lambda: whole(self.worker.step),
            measure_update=measure_update,
            clips=clips,
        )

    def vote(self, step: int | None) -> None:
        """Vote, and make an agreed change, at the least of the ranks' step numbers.

        All ranks have to call it equally often.
        """
        if self._ballots is not None:
            self._number = self.worker.step + 1 if step is None else step
            self._agree(self._ballots, whole(self._number))

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return how often the job has rewound, and the measurements of the gradients."""
        number, self._number = self._number, None  # from before a rewind, if it was agreed on
        own: dict[str, Any] = {"rewinds_total": self.worker.rewinds}
        if self._optimizers is not None:
            own |= self._optimizers.figures()
        return (step if number is None else number), own

    def close(self) -> None:
        """Announce that this rank's loop has ended: no change is agreed on, and no rank waits."""
        if self._ballots is not None:
            self._ballots.leave()

    def vote_within(self, group: Any) -> None:
        """Vote from now on with the ranks of ``group``, a gloo group that nothing else uses."""
        self._ballots = Ballots(group)
        self.worker.changes.can_vote = True
        self.worker.agreed_step = lambda: self._agreed_step
        self.worker.announce()

    def _begin_votes(self, process_group: Any) -> None:
        if not dist.is_initialized():
            _logger.warning(
                "fenced changes are not possible: call loom.manage after "
                "torch.distributed.init_process_group"
            )
            return
        # Its own group: ballots must not pair with the script's collectives, nor wait for a GPU.
        ranks = None if process_group is None else dist.get_process_group_ranks(process_group)
        own = dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)
        linked = torch.tensor(int(not self.loom.inert), dtype=torch.int64, device="cpu")
        dist.all_reduce(linked, dist.ReduceOp.MAX, group=own)
        if not linked:
            return  # without a Weaver there is nothing to vote on
        _warn_of_restarts(os.environ)
        self.vote_within(own)

    def _agree(self, ballots: Ballots, step: int) -> None:
        changes = self.worker.changes
        self._agreed_step = step
        has_made = False
        while not ballots.are_over:
            minima = changes.vote(time.time_ns()).minima()
            ballots.cast(step, minima)
            if minima[0] == NOTHING and not has_made:
                changes.end_step(None)
                ballots.look()
                break
            outcome = self._outcome(ballots)
            if outcome is None:
                changes.end_step(None)
                break
            has_made = self._take_in(outcome)
            if not has_made:
                break
        if ballots.are_over:
            self._end_votes()

    def _outcome(self, ballots: Ballots) -> Outcome | None:
        try:
            return ballots.outcome()
        except RuntimeError as error:
            worker = self.worker.identity.worker
            raise Diverged(
                f"{worker} cannot find out what the other ranks agreed on: {error_line(error)}"
            ) from error

    def _take_in(self, outcome: Outcome) -> bool:
        """Apply an outcome; return whether a change is made, which the next vote confirms."""
        worker, changes = self.worker, self.worker.changes
        least, largest = read_minima(outcome.minima)
        changes.count(least, largest)
        if changes.must_undo:
            worker.set_back()
        # A rank without a pending change has not looked, and does not know this vote's end.
        all_have_looked = least.offered == largest.offered
        changes.end_step(_QUORUM if all_have_looked else None)
        change = changes.due
        if change is None:
            return False
        self._agreed_step = outcome.step
        if change.do is not None and isinstance(change.do.do, Drain):
            # A job cannot continue without some of its ranks: to drain a part is to drain it all.
            everyone = msgspec.structs.replace(change.do, groups=())
            changes.due = msgspec.structs.replace(change, do=everyone)
        worker.make_due()
        if changes.has_lost_state:
            raise Diverged(
                f"{worker.identity.worker} could not rewind to the checkpoint, as other ranks did: "
                "restart the job"
            )
        worker.has_pending = True
        return True

    def _end_votes(self) -> None:
        worker = self.worker
        if not worker.changes.can_vote:
            return
        _logger.info("%s: a rank's loop has ended; no more fenced changes", worker.identity.worker)
        worker.changes.can_vote = False
        worker.changes.withdraw(_LAST)
        worker.announce()


def _warn_of_restarts(environment: Mapping[str, str]) -> None:
    """Warn, on one rank, if gloo will find addresses of dead ranks after a restart."""
    keeps_addresses = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    may_restart = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")
    if keeps_addresses and may_restart and environment.get("RANK") == "0":
        _logger.warning(
            "torchrun's restarts may fail: its store keeps gloo's addresses of dead ranks "
            "(TORCHELASTIC_USE_AGENT_STORE=True); start torchrun with --standalone, or with "
            "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT in place of --master-port, and with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        )


_LAST = 2**62
"""Above the number of any change."""
