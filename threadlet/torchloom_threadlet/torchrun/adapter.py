"""The loom of a torchrun script, whose ranks stay the same from start to end."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from torchloom_core.wire.messages import Drain
from torchloom_threadlet.cleaning import whole
from torchloom_threadlet.fence.agreement import NOTHING, read_minima
from torchloom_threadlet.torchrun.ballots import Ballots, Outcome
from torchloom_threadlet.trainer.attachment import attach_once
from torchloom_threadlet.trainer.loom import Loom
from torchloom_threadlet.trainer.worker import error_line
from torchloom_threadlet.training.gradients import Gradients

_QUORUM = 1
"""The quorum id: all ranks are in one quorum, or there is no run."""

_logger = logging.getLogger(__name__)


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    group: str | None = None,
    rank: int | None = None,
    node: str | None = None,
    rack: str | None = None,
) -> "TorchrunLoom":
    """Register this process as a worker; see :func:`torchloom_threadlet.attach`.

    There are no standbys, and a rank that is restarted on a cordoned node is not dismissed: the
    other ranks would wait for it.
    """
    placement = {"group": group, "rank": rank, "node": node, "rack": rack, "standby": False}
    return attach_once(TorchrunLoom, join, placement, "torchrun")


class TorchrunLoom(Loom):
    """A loom whose ranks vote in :meth:`step`, and make agreed changes there."""

    _ballots: Ballots | None = None
    _gradients: Gradients | None = None
    _agreed_step = -1

    def begin(self) -> None:
        """Return at once: no other rank can train without this one."""

    def manage(
        self,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        measure_update: bool = False,
        process_group: Any = None,
    ) -> None:
        """Agree with the other ranks in each step from now on, and register knobs.

        Call it on all ranks, once ``torch.distributed`` is initialized.

        Parameters
        ----------
        optimizer : optional
            Its learning rate, betas, weight decay, and the clipping and noise of its gradients
            become run-fenced knobs; ``grad_norm`` is measured.
        scheduler : optional
            The optimizer's, which is scaled with the learning rate.
        measure_update : bool
            Whether to measure ``update_norm`` as well, which takes a copy of the weights.
        process_group : optional
            The ranks that agree, all by default. They use a gloo group of their own.
        """
        if self._ballots is None:
            self._begin_votes(process_group)
        if optimizer is not None:
            self.optimizer(optimizer, scheduler)
            self._gradients = Gradients(
                optimizer, step=lambda: whole(self._worker.step), measure_update=measure_update
            )
            self._gradients.register(self)

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Report a finished step; vote, and make agreed changes.

        All ranks have to call it equally often. An agreed change is made at the least of their step
        numbers.

        Raises
        ------
        RuntimeError
            If a rank is gone during a vote on a change: it may have made the change.
        """
        worker = self._worker
        number = worker.step + 1 if step is None else step
        if self._ballots is not None and worker.going:
            self._agree(self._ballots, whole(number))
        own: dict[str, Any] = {"rewinds_total": worker.rewinds}
        if self._gradients is not None:
            own |= self._gradients.figures()
        return super().step(number, **(own | metrics))

    def close(self) -> None:
        """Announce that this rank's loop has ended: no change is agreed on, and no rank waits."""
        if self._ballots is not None:
            self._ballots.leave()
        super().close()

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the run-fenced knobs, for the script's own checkpoint."""
        return {"step": whole(self._worker.step), "knobs": self._worker.actuators.fenced_values()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: on all ranks, with the knobs registered, before weights load.

        Raises
        ------
        SystemExit
            If a knob cannot be set: this rank must not continue with a value of its own.
        """
        worker = self._worker
        worker.step = state["step"]
        registered = {spec.name for spec in worker.actuators.specs}
        for name in sorted(state["knobs"].keys() - registered):
            _logger.warning("knob %s of the checkpoint is not registered: it is ignored", name)
        knobs = {name: value for name, value in state["knobs"].items() if name in registered}
        worker.actuators.set_like_others(knobs)
        worker.send(worker.hello())

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
        linked = torch.tensor(int(not self.inert))
        dist.all_reduce(linked, dist.ReduceOp.MAX, group=own)
        if not linked:
            return  # without a Weaver there is nothing to vote on
        _warn_of_restarts(os.environ)
        self._ballots = Ballots(own)
        worker = self._worker
        worker.changes.can_vote = True
        worker.agreed_step = lambda: self._agreed_step
        worker.send(worker.hello())

    def _agree(self, ballots: Ballots, step: int) -> None:
        changes = self._worker.changes
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
            raise RuntimeError(
                f"{self.worker} cannot find out what the other ranks agreed on: {error_line(error)}"
            ) from error

    def _take_in(self, outcome: Outcome) -> bool:
        """Apply an outcome; return whether a change is made, which the next vote confirms."""
        worker, changes = self._worker, self._worker.changes
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
            raise RuntimeError(
                f"{self.worker} could not rewind to the checkpoint, as other ranks did: "
                "restart the job"
            )
        worker.has_pending = True
        return True

    def _end_votes(self) -> None:
        worker = self._worker
        if not worker.changes.can_vote:
            return
        _logger.info("%s: a rank's loop has ended; no more fenced changes", self.worker)
        worker.changes.can_vote = False
        worker.changes.withdraw(_LAST)
        worker.send(worker.hello())


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
