"""Copies a rank's state into slots, and has its writer store them; nothing waits for a file."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece, Shard
from torchloom_threadlet.checkpoint.copying import Copy
from torchloom_threadlet.checkpoint.device_copy import SideStreams
from torchloom_threadlet.checkpoint.owner import Owner
from torchloom_threadlet.checkpoint.pieces import own_pieces, replica_of
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.slots import ComingSlots, Slots
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.checkpoint.writer.orders import (
    SLOTS,
    Begin,
    Cancel,
    Limit,
    Order,
    Report,
    TierPlace,
)
from torchloom_threadlet.checkpoint.writer_link import WriterLink
from torchloom_threadlet.trainer.sidecar_start import find_interpreter

_ROOM = 1.25
"""Slots are larger than the first state, which grows with the first steps of an optimizer."""

_logger = logging.getLogger(__name__)


class _Part(NamedTuple):
    """What a rank saves: its tensors, names of those that only an optimizer changes, the JSON."""

    pieces: list[tuple[Piece, Tensor]]
    steady: set[str]
    described: bytes

    @property
    def bytes(self) -> int:
        """The bytes of the tensors."""
        return max((piece.end for piece, _ in self.pieces), default=0)

    @property
    def size(self) -> int:
        """The bytes that it takes in a slot."""
        return self.bytes + len(self.described)

    @property
    def device(self) -> torch.device | None:
        """The GPU of the first tensor that is on one."""
        return next((tensor.device for _, tensor in self.pieces if tensor.is_cuda), None)


class Saver:
    """The slots and the writer of one rank.

    Attributes
    ----------
    blocked_s : float
        What training has waited for the last save, seconds.
    longest_wait_s : float
        The longest single wait of all saves, seconds.
    """

    def __init__(
        self, state: TrainingState, ranks: SavingRanks, places: Sequence[TierPlace]
    ) -> None:
        self._state, self._ranks, self._places = state, ranks, tuple(places)
        self._interpreter = find_interpreter()
        self._slots: Slots | None = None
        self._coming: ComingSlots | None = None
        self._has_prepared = False
        self._link: WriterLink | None = None
        self._busy: dict[int, set[str]] = {}
        self._copy: Copy | None = None
        self._order: Order | None = None
        self._is_torn = False
        self._streams = SideStreams()
        self._is_stepping = self._has_stepped = self._is_passed = False
        self._limit = Limit(bytes_per_s=0.0)
        self.blocked_s = self.longest_wait_s = 0.0

    @property
    def is_free(self) -> bool:
        """Whether there is a slot for another save."""
        return self._copy is None and len(self._busy) < SLOTS

    @property
    def is_over(self) -> bool:
        """Whether there is no writer, or it has ended."""
        return self._link is None or self._link.is_over

    @property
    def is_copying(self) -> bool:
        """Whether the state is being copied."""
        return self._copy is not None

    @property
    def is_copied(self) -> bool:
        """Whether a copy is complete, and can be handed over without a wait."""
        return self._copy is not None and self._copy.is_over

    def has_lost_writer(self) -> bool:
        """Return whether the writer has ended, and what it had to store is lost."""
        if self._link is None or not self._link.is_over or self.is_copying:
            return False
        self._busy = {}
        return True

    def limit(self, bytes_per_s: float) -> None:
        """Limit what the writer sends to other nodes and object stores; 0: no limit."""
        self._limit = Limit(bytes_per_s=bytes_per_s)
        if self._link is not None:
            self._link.send(self._limit)

    def cancel(self, step: int) -> None:
        """Have the writer wait no longer for other ranks' parts of this step."""
        if self._link is not None:
            self._link.send(Cancel(step=step))

    def reports(self) -> Iterator[Report]:
        """Yield what the writer has reported by now."""
        for report in self._link.reports() if self._link is not None else ():
            if report.what in ("stored", "failed") and report.slot in self._busy:
                self._busy[report.slot].discard(report.tier)
                if not self._busy[report.slot]:
                    del self._busy[report.slot]
            yield report

    def prepare(self) -> None:
        """Have slots made beside training, once; a save that comes sooner waits for them."""
        if self._has_prepared or self._slots is not None:
            return
        self._has_prepared = True
        try:
            part = self._part()
            self._coming = ComingSlots(round(part.size * _ROOM), part.device)
        except Exception as error:  # noqa: BLE001 - the save says what cannot be saved
            _logger.debug("no slots are made beforehand: %s", error)

    def begin(self, order: Order) -> None:
        """Copy this rank's part into a free slot; raises what that raises.

        ``order`` is given without its slot and sizes.
        """
        begun_s = time.monotonic()
        part = self._part()
        slots = self._make_room(part)
        slot = min(set(range(SLOTS)) - self._busy.keys())
        slots.put(slot, part.bytes, part.described)
        self._order = msgspec.structs.replace(
            order,
            slot=slot,
            bytes=part.bytes,
            described=len(part.described),
            owner=str(Owner.of_this_process()),
        )
        # An optimizer that a CUDA graph replays calls no hook.
        is_hooked = part.device is None or self._has_stepped
        may_lag = self._state.steppers and is_hooked and not (self._is_torn or self._is_passed)
        self._is_passed = False
        steady = part.steady if may_lag else set()
        self._copy = Copy(slots, slot, part.pieces, steady, self._streams)
        self._busy[slot] = set(order.tiers)
        self.blocked_s = time.monotonic() - begun_s
        self.longest_wait_s = max(self.longest_wait_s, self.blocked_s)

    def at_boundary(self) -> None:
        """Note the end of a step: whether an optimizer's hook was called in it.

        If not, a CUDA graph may have replayed the optimizer while its weights were being copied.
        """
        if self._copy is not None and not self._copy.is_held and not self._is_stepping:
            self._is_passed = True
        self._has_stepped, self._is_stepping = self._is_stepping, False

    def hold_optimizers(self, finish: Callable[[], None]) -> None:
        """Let optimizers step only once that changes nothing which is not copied yet.

        What is on a GPU is waited for there. ``finish`` is called where a copy is complete.
        """

        def hold(*_: object) -> None:
            self._is_stepping = True
            if self._copy is not None and self._hold(self._copy):
                finish()

        for optimizer in self._state.steppers:
            optimizer.register_step_pre_hook(hold)

    def _hold(self, copy: Copy) -> bool:
        begun_s = time.monotonic()
        try:
            return copy.hold()
        except Exception:  # noqa: BLE001 - waiting for it raises the same
            return True
        finally:
            self._add_wait(time.monotonic() - begun_s)

    def finish(self) -> str:
        """Wait for the copy under way, and hand it to the writer; return why it failed, or ""."""
        copy, order = self._copy, self._order
        if copy is None or order is None:
            return ""
        begun_s = time.monotonic()
        self._copy = self._order = None
        try:
            copy.wait()
        except Exception as error:  # noqa: BLE001 - training continues
            self._busy.pop(copy.slot, None)
            return str(error)
        self._add_wait(time.monotonic() - begun_s)
        if self._is_passed:
            self._busy.pop(copy.slot, None)
            return (
                "a step followed in which no optimizer called its hook, as in a CUDA graph; the "
                "next one is copied before training goes on"
            )
        if copy.torn:
            self._busy.pop(copy.slot, None)
            self._is_torn = True
            return (
                f"{copy.torn} changed between two optimizer steps; from now on the state is "
                "copied before training goes on"
            )
        if self._link is None or not self._link.send(order):
            self._busy.pop(copy.slot, None)
            return "its writer has ended"
        return ""

    def close(self, wait_s: float = 0.0) -> None:
        """Have the writer store what is complete, and end; it is waited for as long as given."""
        if self._link is not None:
            self._link.close(wait_s)
        if self._coming is not None:
            self._coming.give_up()
        self._link = self._slots = self._coming = None
        self._busy = {}

    def _add_wait(self, waited_s: float) -> None:
        self.blocked_s += waited_s
        self.longest_wait_s = max(self.longest_wait_s, waited_s)

    def _part(self) -> "_Part":
        """Return what this rank saves, as it is now."""
        gathered = self._state.gather(self._ranks.rank)
        steady = self._state.steady()
        replica = replica_of(self._state.models.values())
        pieces = own_pieces(gathered.tensors, frozenset(steady), replica, self._ranks.rank)
        shard = Shard(
            rank=self._ranks.rank,
            pieces=tuple(piece for piece, _ in pieces),
            own=gathered.own,
            shared=gathered.shared,
        )
        return _Part(pieces, steady, msgspec.json.encode(shard))

    def _make_room(self, part: _Part) -> Slots:
        """Return slots for this that have a writer; those that are too small are given up."""
        size = part.size
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
        self._link, self._busy = None, {}
        self._slots = slots = self._new_slots(part)
        try:
            self._link = WriterLink(self._interpreter, slots.path)
        except OSError:
            slots.remove()
            self._slots = None
            raise
        self._link.send(Begin(tiers=self._places))
        self._link.send(self._limit)
        return slots

    def _new_slots(self, part: _Part) -> Slots:
        coming, self._coming = self._coming, None
        if coming is not None:
            slots = coming.wait()
            if slots.bytes >= part.size:
                return slots
            slots.remove()
        return Slots(round(part.size * _ROOM), part.device)
