"""The checkpoints of a training script: restored at the start, saved between its steps."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from torchloom_core.checkpoints.layout import Shard
from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.floor.plain_text import plain_line
from torchloom_threadlet.checkpoint.agreement import LEAVE, NOTHING, SAVE, SaveRequests
from torchloom_threadlet.checkpoint.copying import Copy
from torchloom_threadlet.checkpoint.owner import Owner
from torchloom_threadlet.checkpoint.pieces import own_pieces, replica_of
from torchloom_threadlet.checkpoint.restore import Restored, restore
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.slots import SLOTS, Slots
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.checkpoint.writer.orders import Order, Report
from torchloom_threadlet.checkpoint.writer_link import WriterLink
from torchloom_threadlet.trainer.sidecar_start import find_interpreter

_ROOM = 1.25
"""Slots are larger than the first state, which grows with the first steps of an optimizer."""

_logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves the state of a rank together with the others, and restores the newest at the start.

    Nothing here ends or delays training but two waits: for the newest checkpoint to be read, in the
    constructor, and at an optimizer's step until the copy of its weights is complete.

    Parameters
    ----------
    parts
        What is saved: see :class:`~torchloom_threadlet.checkpoint.state.TrainingState`.
    own : mapping
        More of this rank's, by name: the loom's own state.
    place : str
        A folder that all ranks reach.
    every_s : float
        Seconds of training between two checkpoints.
    keep : int
        Complete checkpoints that stay; 0: all.
    run : str
        Name of the run, for the manifest.
    ranks : SavingRanks
        Those that save together.
    note : callable
        ``note(kind, fields)`` tells the Weaver.
    leave : callable
        Ends the script's loop after this step.
    saves : callable
        Whether these ranks save now: of replica groups with the same state one does.

    Attributes
    ----------
    step : int
        The step of the checkpoint that was restored; -1 without one.
    every_s : float
        May be changed at any time.

    Raises
    ------
    CheckpointError
        If there are checkpoints and none can be loaded, or a part cannot be saved.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        own: Mapping[str, Any],
        place: str,
        *,
        every_s: float,
        keep: int,
        run: str,
        ranks: SavingRanks,
        note: Callable[[str, dict[str, Any]], object],
        leave: Callable[[], object],
        saves: Callable[[], bool] = lambda: True,
    ) -> None:
        self.every_s = every_s
        self._place = place
        self._keep = keep
        self._run = run
        self._ranks = ranks
        self._note = note
        self._leave = leave
        self._saves = saves
        self._state = TrainingState(parts, own)
        self._storage = storage_at(place)
        self._interpreter = find_interpreter()
        self._requests = SaveRequests(ranks.group)
        self._request = NOTHING
        self._slots: Slots | None = None
        self._link: WriterLink | None = None
        self._busy: set[int] = set()
        self._copy: Copy | None = None
        self._order: Order | None = None
        self._is_torn = False
        self._quiet_until = -1
        self._boundaries = 0
        self._saved_s = self._tried_s = time.monotonic()
        self._copied_s: dict[int, float] = {}
        self._saved_step = -1
        self.longest_wait_s = 0.0
        self._restored = restore(self._storage, self._state, ranks.rank, ranks.first, ranks.all)
        self.step = -1 if self._restored is None else self._restored.folder.step
        self._saved_step = self.step
        self._generation, self._token = self._begin_generation(self._restored)
        for optimizer in self._state.steppers:
            optimizer.register_step_pre_hook(lambda *_: self._finish_copy())

    def _begin_generation(self, restored: Restored | None) -> tuple[int, str]:
        """Return the generation of what is saved from now on, and this start's token."""
        generation = 1
        if restored is not None:
            generation = restored.folder.generation + (0 if restored.is_newest else 1)
        text = self._ranks.first(f"{generation} {secrets.token_hex(4)}")
        number, _, token = text.partition(" ")
        return int(number), token

    def save(self) -> None:
        """Have all ranks save, a few steps from now."""
        self._request = max(self._request, SAVE)

    def leave(self) -> None:
        """Have all ranks save and leave, a few steps from now; a signal handler may call it."""
        self._request = LEAVE

    @property
    def unsaved_s(self) -> float:
        """The seconds of training since the state of the newest checkpoint that is stored."""
        return time.monotonic() - self._saved_s

    def at_boundary(self, step: int, *, is_last: bool = False) -> None:
        """Take note of what was stored, and begin to save if all agreed on it some steps ago.

        ``is_last``: all ranks leave after this step, so all save now.
        """
        self._boundaries += 1
        if self._link is not None:
            for report in self._link.reports():
                self._take(report)
        if self._copy is not None and self._copy.is_over:
            self._finish_copy()
        if not self._saves():
            self._let_another_save()
        if not is_last:
            is_due = self._ranks.rank == 0 and self._is_due()
            agreed = self._requests.exchange(max(self._request, SAVE if is_due else NOTHING))
            self._request = NOTHING
            is_old = self._boundaries <= self._quiet_until
            if agreed == NOTHING or (is_old and agreed != LEAVE):
                return
            is_last = agreed == LEAVE
            if is_last:
                self._leave()
        self._quiet_until = self._boundaries + self._requests.lag
        self._tried_s = time.monotonic()
        try:
            self._begin(step)
            if is_last:
                self._finish_copy()
        except Exception as error:  # noqa: BLE001 - training continues
            self._complain(step, error)

    def close(self) -> None:
        """Announce that this rank's loop has ended; the writer stores what is complete."""
        self._finish_copy()
        self._requests.close()
        if self._link is not None:
            self._link.close()

    def _let_another_save(self) -> None:
        """End the writer, and with it the lock of the place."""
        if self._link is None:
            return
        self._finish_copy()
        self._link.close()
        self._link = self._slots = None
        self._busy = set()

    def _is_due(self) -> bool:
        return time.monotonic() - self._tried_s >= self.every_s and self._is_free()

    def _is_free(self) -> bool:
        return self._copy is None and len(self._busy) < SLOTS

    def _begin(self, step: int) -> None:
        """Copy this rank's part into a free slot."""
        if step == self._saved_step or not self._saves():
            return
        if step < self._saved_step:  # the run went back; all ranks know it
            self._generation += 1
        self._saved_step = step
        if not self._is_free():
            _logger.warning("no checkpoint at step %d: the last two are still being stored", step)
            return
        gathered = self._state.gather(self._ranks.rank)
        steady = self._state.steady()
        replica = replica_of(self._state.models.values())
        pieces = own_pieces(gathered.tensors, frozenset(steady), replica, self._ranks.rank)
        size = max((piece.at + piece.bytes for piece, _ in pieces), default=0)
        shard = Shard(
            rank=self._ranks.rank,
            pieces=tuple(piece for piece, _ in pieces),
            own=gathered.own,
            shared=gathered.shared,
        )
        described = msgspec.json.encode(shard)
        slots = self._make_room(size + len(described))
        slot = min(set(range(SLOTS)) - self._busy)
        slots.put(slot, size, described)
        self._order = Order(
            slot=slot,
            generation=self._generation,
            step=step,
            token=self._token,
            run=self._run,
            ranks=self._ranks.count,
            rank=self._ranks.rank,
            keep=self._keep,
            bytes=size,
            described=len(described),
            owner=str(Owner.of_this_process()),
        )
        self._busy.add(slot)
        may_lag = self._state.steppers and not self._is_torn
        self._copy = Copy(slots, slot, pieces, steady if may_lag else set())
        self._copied_s[step] = self._tried_s

    def _make_room(self, size: int) -> Slots:
        """Return slots of this size that have a writer; those that are too small are given up."""
        slots, is_served = self._slots, self._link is not None and not self._link.is_over
        if slots is not None and slots.bytes >= size and is_served:
            return slots
        if self._link is not None:
            if self._link.is_over:
                why = self._link.end_reason() or "it was stopped"
                _logger.warning("the writer of checkpoints ended, another one starts: %s", why)
            self._link.close()
        if slots is not None and not is_served:
            slots.remove()
        self._link, self._busy = None, set()
        self._slots = slots = Slots(round(size * _ROOM))
        try:
            self._link = WriterLink(self._interpreter, self._place, slots.path)
        except OSError:
            slots.remove()
            self._slots = None
            raise
        return slots

    def _finish_copy(self) -> None:
        """Wait for the copy under way, and hand it to the writer."""
        copy, order = self._copy, self._order
        if copy is None or order is None:
            return
        began_s = time.monotonic()
        self._copy = self._order = None
        try:
            copy.wait()
        except Exception as error:  # noqa: BLE001 - training continues
            self._busy.discard(copy.slot)
            self._complain(order.step, error)
            return
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)
        if copy.torn:
            self._busy.discard(copy.slot)
            self._is_torn = True
            _logger.warning(
                "no checkpoint at step %d: %s changed between two optimizer steps; from now on the "
                "state is copied before training goes on", order.step, copy.torn,
            )  # fmt: skip
        elif self._link is None or not self._link.send(order):
            self._busy.discard(copy.slot)
            _logger.warning("no checkpoint at step %d: its writer has ended", order.step)

    def _take(self, report: Report) -> None:
        if report.what in ("stored", "failed"):
            self._busy.discard(report.slot)
        if report.what == "not_removed":
            _logger.warning("an old checkpoint is not removed: %s", plain_line(report.detail))
            return
        copied_s = self._copied_s.get(report.step, 0.0)
        if report.what == ("complete" if self._ranks.rank == 0 else "stored"):
            self._saved_s = max(self._saved_s, copied_s)
            self._copied_s = {s: at for s, at in self._copied_s.items() if at > copied_s}
        if report.what in ("failed", "incomplete"):
            self._copied_s.pop(report.step, None)
            text = "the checkpoint at step %d is not saved: %s"
            _logger.warning(text, report.step, plain_line(report.detail))
        fields = {"step": report.step, "seconds": report.seconds}
        if report.what == "complete":
            self._note("checkpoint_saved", fields)
        elif report.what != "stored":
            self._note("checkpoint_failed", {**fields, "why": report.detail})

    def _complain(self, step: int, error: BaseException) -> None:
        _logger.warning("no checkpoint at step %d: %s", step, plain_line(str(error)))
        self._note("checkpoint_failed", {"step": step, "why": str(error)})
