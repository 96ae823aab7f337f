"""The checkpoints of a training script: restored at the start, saved between its steps."""

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchloom_core.checkpoints.layout import MOST_GENERATION, Folder
from torchloom_core.floor.errors import CheckpointError
from torchloom_core.wire.checkpoint_tiers import PATH, REMOTE
from torchloom_threadlet.checkpoint.agreement import Requests, SaveRequests
from torchloom_threadlet.checkpoint.loop import TrainingLoop
from torchloom_threadlet.checkpoint.outcomes import Outcomes, number_parts
from torchloom_threadlet.checkpoint.restore import Restored, restore
from torchloom_threadlet.checkpoint.saver import Saver
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.checkpoint.tiers import Tier, measurements
from torchloom_threadlet.checkpoint.writer.orders import Order

_LOOK_S, _STORING_S, _STORED_S = 0.02, 10.0, 550.0

_logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves the state of a rank together with the others, and restores the newest at the start.

    Nothing here ends or delays training but two waits: for the newest checkpoint to be read, in the
    constructor and in :meth:`rewind`, and at an optimizer's step until the copy of its weights is
    complete.

    Parameters
    ----------
    parts
        What is saved: see :class:`~torchloom_threadlet.checkpoint.state.TrainingState`.
    own : mapping
        More of this rank's, by name: the loom's own state.
    tiers : sequence of Tier
        Where it is saved, the least durable first.
    sources : Sources
        From where it may be restored.
    ranks : SavingRanks
        Those that save together.
    loop : TrainingLoop
        The script's loop.

    Attributes
    ----------
    step : int
        The step of the checkpoint that was restored; -1 without one.

    Raises
    ------
    CheckpointError
        If there are checkpoints and none can be loaded, or a part cannot be saved.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        own: Mapping[str, Any],
        tiers: Sequence[Tier],
        sources: Sources,
        ranks: SavingRanks,
        loop: TrainingLoop,
    ) -> None:
        self.tiers = {tier.name: tier for tier in tiers}
        self._sources, self._ranks, self._loop = sources, ranks, loop
        self._state = TrainingState(parts, own)
        self._saver = Saver(self._state, ranks, [tier.place for tier in tiers])
        self._requests = SaveRequests(ranks.group)
        self._wanted: set[str] = set()
        self._leaves = False
        self._outcomes = Outcomes(self.tiers, self._saver, loop, ranks.rank, self.rewind)
        self._full = self._outcomes.full
        self._boundaries = 0
        self._quiet_until = -1
        self._has_rewound = False
        self.step, self._restored_folder = -1, ""
        restored = self._restore()
        self._last_step = self.step
        self._generation, self._token = self._begin_generation(restored)
        self._saver.hold_optimizers(self._finish_copy)

    def _restore(self, *, in_training: bool = False) -> Restored | None:
        restored = restore(self._sources, self._state, self._ranks, in_training=in_training)
        if restored is not None:
            self._restored_folder = str(restored.folder)
            self.step = self._loop.step = restored.folder.step
            self._outcomes.note_any()
        return restored

    def _begin_generation(self, restored: Restored | None) -> tuple[int, str]:
        """Return the generation of what is saved from now on, and this start's token."""
        generation = 1
        if restored is not None:
            generation = restored.newest.generation + (0 if restored.is_newest else 1)
            if generation > MOST_GENERATION:
                place = self._sources.path.name
                raise CheckpointError(f"{place}: nothing can be newer than {restored.newest}")
        text = self._ranks.first(f"{generation} {secrets.token_hex(4)}")
        number, _, token = text.partition(" ")
        return int(number), token

    def save(self) -> None:
        """Have all ranks save, a few steps from now, in all tiers but the remote one."""
        self._wanted |= self.tiers.keys() - {REMOTE}

    def store(self, name: str, *only: str) -> None:
        """Save now, in all tiers but the remote one or in these, and wait until it is stored.

        All ranks do it at once, at the same step; ``name`` is of this save alone.

        Raises
        ------
        CheckpointError
            On all ranks, if it is not stored on one of them.
        TimeoutError
            On all ranks, if one has not come within 10 s.
        """
        self._ranks.meet(name)
        step, why = self._loop.step, ""
        try:
            self._finish_copy()
            if self._loop.saves():
                self._wait_for_writer(_STORED_S)
                tiers = only or [one for one in self.tiers if one != REMOTE]
                self._begin(step, list(tiers), time.monotonic())
                self._finish_copy()
                self._wait_for_writer(_STORED_S)
                if any(self.tiers[one].stored != step for one in only or (PATH,)):
                    why = f"the checkpoint at step {step} is not stored: see the trainers' log"
        except Exception as error:  # noqa: BLE001 - the others wait for this rank's answer
            why = str(error) or type(error).__name__
        if problem := next(filter(None, self._ranks.gather(why)), ""):
            raise CheckpointError(problem)

    def leave(self) -> None:
        """Have all ranks save and leave, a few steps from now; a signal handler may call it."""
        self._leaves = True

    def limit(self, bytes_per_s: float) -> None:
        """Limit what is sent to other nodes and object stores, for each rank; 0: no limit."""
        self._saver.limit(bytes_per_s)

    @property
    def longest_wait_s(self) -> float:
        """The longest single wait of training for a save, seconds."""
        return self._saver.longest_wait_s

    def measurements(self) -> dict[str, float]:
        """Return the metrics of a step: what a failure now would lose, what a save costs.

        None of ranks that do not save: another replica group does.
        """
        return measurements(self.tiers.values()) if self._loop.saves() else {}

    def rewind(self) -> None:
        """Load the newest checkpoint again, on all ranks at the same step.

        Raises
        ------
        CheckpointError
            If there is none that can be loaded. Nothing has changed then.
        """
        self._finish_copy()
        self._wait_for_writer()
        restored = self._restore(in_training=True)
        if restored is None:
            raise CheckpointError(f"{self._sources.path.name}: no complete checkpoint")
        # Another token: what is stored from now on must not meet files of what was given up.
        self._generation, self._token = self._begin_generation(restored)
        self._last_step, self._outcomes.good = self.step, 0
        self._quiet_until = self._boundaries + 1 + self._requests.lag
        self._has_rewound = True

    def batches(self, loader: Any, steps: int) -> Iterator[tuple[int, Any]]:
        """Yield each step that is left with its batch, over as many epochs as it takes.

        It begins after the checkpoint that was restored, also in mid-epoch, with the batches that
        an undisturbed run would have had, and goes back with a rewind. A loader that was given to
        ``loom.checkpoints`` restores its position itself; of any other the batches before it are
        read again. ``set_epoch`` of a sampler is called.

        Parameters
        ----------
        loader : iterable
            Of batches, such as a ``DataLoader``.
        steps : int
            Number of steps of the whole run.

        Raises
        ------
        ValueError
            If the loader has no batch.
        """
        return self._loop.batches(loader, steps)

    def at_boundary(self, step: int, *, is_last: bool = False) -> None:
        """Take note of what was stored, and begin to save if all agreed on it some steps ago.

        ``is_last``: all ranks leave after this step, so all save now.
        """
        now_s = time.monotonic()
        self._boundaries += 1
        try:
            self._take_reports(now_s)
        except Exception as error:  # noqa: BLE001 - the others wait for this rank's requests
            _logger.warning("what became of a save is not known: %s", error)
        if self._has_rewound:  # the step that is over belongs to what was given up
            self._has_rewound, self._loop.step = False, self.step
            return
        if not self._loop.saves():
            self._let_another_save()
        elif self._boundaries > 1:  # an optimizer has its state since its first step
            self._saver.prepare()
        if is_last:
            tiers = self.tiers.keys() - {REMOTE}
        else:
            agreed = self._requests.exchange(self._requested(now_s))
            self._wanted, self._leaves = set(), False
            if agreed is None:
                return
            is_quiet = self._boundaries <= self._quiet_until  # what was asked before the last save
            if not is_quiet:
                self._outcomes.good = max(self._outcomes.good, agreed.good)
            if agreed.is_any and not self._outcomes.is_any:
                self._outcomes.note_any()
            self._full.is_asked = agreed.full
            if self._requests.unheard:
                self._outcomes.lost.append(self._requests.unheard - 1)
            if agreed.lost and self._ranks.rank == 0:
                self._saver.cancel(agreed.lost - 1)
            tiers = {name for name, on in zip(self.tiers, agreed.tiers, strict=True) if on}
            is_last = agreed.leave
            if is_last:
                tiers = self.tiers.keys() - {REMOTE}
                self._loop.leave()
            elif is_quiet:
                return
        if not tiers:
            return
        self._quiet_until = self._boundaries + self._requests.lag
        try:
            self._begin(step, [name for name in self.tiers if name in tiers], now_s)
            if is_last:
                self._finish_copy()
        except Exception as error:  # noqa: BLE001 - training continues
            self._outcomes.complain(step, str(error))
            for name in tiers:
                self.tiers[name].try_later(now_s)

    def close(self) -> None:
        """Announce that this rank's loop has ended; the writer stores what is complete."""
        self._finish_copy()
        self._requests.close()
        self._saver.close()

    def _take_reports(self, now_s: float) -> None:
        """Take note of what the writer did, and hand a finished copy to it."""
        self._saver.at_boundary()
        self._outcomes.felt.at_boundary(now_s)
        for report in self._saver.reports():
            self._outcomes.take(report)
        if self._saver.has_lost_writer():
            self._outcomes.lose()
        if self._saver.is_copied:
            self._finish_copy()

    def _requested(self, now_s: float) -> Requests:
        """Return what this rank asks of all: rank 0's clock decides what is due."""
        is_free = self._ranks.rank == 0 and self._saver.is_free
        return Requests(
            tuple(
                name in self._wanted or (is_free and tier.is_due(now_s))
                for name, tier in self.tiers.items()
            ),
            self._leaves,
            self._outcomes.is_any,
            self._outcomes.good,
            self._full.is_needed,
            self._outcomes.lost.popleft() + 1 if self._outcomes.lost else 0,
        )

    def _wait_for_writer(self, at_most_s: float = _STORING_S) -> None:
        """Let the writer store what it has, as far as that is soon."""
        end_s = time.monotonic() + at_most_s
        while any(tier.is_saving for tier in self.tiers.values() if tier.name != REMOTE):
            if time.monotonic() > end_s or self._saver.is_over:
                return
            for report in self._saver.reports():
                self._outcomes.take(report)
            time.sleep(_LOOK_S)

    def _let_another_save(self) -> None:
        """End the writer, and with it the lock of the place."""
        self._finish_copy()
        self._saver.close()
        self._outcomes.give_up()

    def _begin(self, step: int, tiers: list[str], now_s: float) -> None:
        """Copy this rank's part into a free slot, for these tiers."""
        tiers = [name for name in tiers if self.tiers[name].step != step]
        if not tiers or not self._loop.saves():
            return
        if step < self._last_step:  # the run went back; all ranks know it
            self._generation += 1
        self._last_step = step
        folder = str(Folder(self._generation, step, self._token))
        base = self._full.base_of(folder) if REMOTE in tiers else ""
        if not self._saver.is_free:
            self._full.is_needed |= REMOTE in tiers
            for name in tiers:
                self.tiers[name].try_later(now_s)
            self._outcomes.complain(step, "the last two are still being stored")
            return
        self._saver.begin(
            Order(
                slot=0,
                tiers=tuple(tiers),
                generation=self._generation,
                step=step,
                token=self._token,
                run=self._loop.run,
                ranks=self._ranks.count,
                rank=self._ranks.rank,
                good=self._good_folder(),
                base=base,
                bytes=0,
                described=0,
                owner="",
            )
        )
        for name in tiers:
            self.tiers[name].begin(step, now_s)
        self._outcomes.felt.begin(tiers)

    def _good_folder(self) -> str:
        """Return the newest checkpoint that is known to be complete in the memory of nodes."""
        if not self._outcomes.good:
            return self._restored_folder
        return str(Folder(*number_parts(self._outcomes.good), self._token))

    def _finish_copy(self) -> None:
        """Wait for the copy under way, and hand it to the writer."""
        if self._saver.is_copying and (why := self._saver.finish()):
            self._outcomes.fail(self._last_step, why)
