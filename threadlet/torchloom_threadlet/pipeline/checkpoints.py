"""Checkpoints of a pipeline: each layer once, saved by one of its holders, in the usual layout.

The first worker of the assignment writes the manifest once all files are there. So a checkpoint is
complete, or it is none. Any number of workers loads it, with any division.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece, Shard
from torchloom_core.checkpoints.storage import Storage, storage_at
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.checkpoint_tiers import FAILED, PATH, SAVED
from torchloom_threadlet.checkpoint.json_state import decode, dtype_named, encode
from torchloom_threadlet.checkpoint.writer.orders import Order
from torchloom_threadlet.checkpoint.writer.storing import Part, complete, forget, store
from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.layers.layer_state import load_state, state_of

_logger = logging.getLogger(__name__)
_STORING_S = 60.0
_MOST = 2  # under way at a time, and so in memory


class Moment(NamedTuple):
    """When and by which workers a checkpoint is saved.

    Attributes
    ----------
    name : str
        From :meth:`PipelineCheckpoints.new_name`, the same on all workers of a generation; empty
        if the first of them saves nothing.
    """

    step: int
    assignment: Assignment
    name: str


class PipelineCheckpoints:
    """One worker's part of the checkpoints in a place, and the newest one of them.

    Parameters
    ----------
    place : str
        A folder or URL.
    every_steps : int
        How many steps there are from one to the next; 0: only those that are requested.
    keep : int
        The newest complete ones that stay; 0: all.
    note : callable
        ``note(kind, fields)`` reports a save to the Weaver.

    Attributes
    ----------
    step : int
        Of the checkpoint that a new run begins with; -1 for none.
    problem : str
        Why the last save has failed, "" if it has not.

    Raises
    ------
    CheckpointError
        If there are checkpoints, and none can be read.
    """

    def __init__(
        self, place: str, every_steps: int, keep: int, note: Callable[[str, dict[str, Any]], Any]
    ) -> None:
        for name, value in (("checkpoint_steps", every_steps), ("checkpoint_keep", keep)):
            if value < 0:
                raise CheckpointError(f"pipeline: {name}: need >= 0, was {value}")
        self._storage, self._every, self._keep = storage_at(place), every_steps, keep
        self._note = note
        self._loaded, self._generation = _newest(self._storage)
        found = self._loaded.manifest if self._loaded is not None else None
        self.step = found.step if found is not None else -1
        self.problem = ""
        self._threads: list[threading.Thread] = []
        self._saved: tuple[int, str] = (self.step, "")

    @property
    def shared(self) -> Any:
        """What the loaded checkpoint keeps beside the layers, None without one."""
        return self._loaded.shards[0].shared if self._loaded is not None else None

    def new_name(self) -> str:
        """Return what tells the checkpoints of a generation from all others."""
        return f"{self._generation} {secrets.token_hex(4)}"

    def load(self, layer: Layer) -> None:
        """Give a new layer its state.

        Raises
        ------
        CheckpointError
            If it is not in the checkpoint, is damaged, or is that of another layer.
        """
        loaded, key = self._loaded, str(layer.number)
        assert loaded is not None
        own = next((s.own[key] for s in loaded.shards if key in s.own), None)
        if own is None:
            raise CheckpointError(f"{loaded.folder}: layer {key} is missing")
        tensors = {
            name: _tensor(loaded, rank, piece)
            for (name, _), (rank, piece) in loaded.pieces.items()
            if name.startswith(f"{_place(layer)}.")
        }
        try:
            load_state(layer, decode(own, tensors))
        except (RuntimeError, ValueError, KeyError) as error:
            why = " ".join(str(error).split())
            raise CheckpointError(f"{loaded.folder}: layer {key}: {why}") from None

    def check(self, layers: int) -> None:
        """Raise CheckpointError if the loaded checkpoint is of another number of layers."""
        if self._loaded is None:
            return
        saved = sum(len(shard.own) for shard in self._loaded.shards)
        if saved != layers:
            raise CheckpointError(
                f"{self._loaded.folder}: layers: need {saved}, as were saved, was {layers}"
            )

    def is_due(self, step: int) -> bool:
        """Return whether all save after this step by themselves."""
        return bool(self._every) and step > self.step and (step + 1) % self._every == 0

    def save(self, moment: Moment, worker: str, held: Mapping[int, Layer], shared: Any) -> None:
        """Copy this worker's part, and store it in a thread.

        Parameters
        ----------
        shared : Any
            What is kept beside the layers, the same on all workers.
        """
        if self._saved == (moment.step, moment.name):
            return
        self._saved, self.problem = (moment.step, moment.name), ""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if not moment.name:
            self._complain(moment.step, "the first worker has no checkpoints=")
        elif len(self._threads) >= _MOST:
            self._complain(moment.step, f"the last {_MOST} are still being stored")
        else:
            try:
                part = _copied(moment, worker, held, shared)
            except CheckpointError as error:
                self._complain(moment.step, error_line(error))
                return
            self._threads.append(threading.Thread(target=self._store, args=(part,), daemon=True))
            self._threads[-1].start()

    def wait(self) -> None:
        """Wait until this worker has stored what it has copied."""
        end_s = time.monotonic() + _STORING_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _store(self, part: Part) -> None:
        order, began_s = part.order, time.monotonic()
        mine = self._saved
        try:
            store(self._storage, part, None)
            if order.rank:
                return
            if why := complete(self._storage, part, lambda: self._saved != mine):
                self._complain(order.step, why)
                return
            forget(self._storage, self._keep, 0.0)
        except (OSError, CheckpointError) as error:
            self._complain(order.step, error_line(error))
            return
        seconds = time.monotonic() - began_s
        self._note(SAVED, {"tier": PATH, "step": order.step, "seconds": seconds})

    def _complain(self, step: int, why: str) -> None:
        self.problem = f"no checkpoint at step {step}: {why}"
        _logger.warning("%s", self.problem)
        self._note(FAILED, {"tier": PATH, "step": step, "why": why})


def _newest(storage: Storage) -> tuple[Checkpoint | None, int]:
    """Return the newest checkpoint that can be read, and the generation of those that follow."""
    folders = complete_folders(storage)
    for folder in folders:
        try:
            found = Checkpoint([storage], str(folder))
        except CheckpointError as error:
            _logger.warning("an older checkpoint is used: %s", error)
            continue
        return found, folders[0].generation + (folder != folders[0])
    if folders:
        raise CheckpointError(f"{storage.name}: none of {len(folders)} checkpoints can be read")
    return None, 1


def _place(layer: Layer) -> str:
    return f"layer{layer.number}"


def _tensor(loaded: Checkpoint, rank: int, piece: Piece) -> Tensor:
    whole = torch.empty(piece.shape, dtype=dtype_named(piece.dtype), device="cpu")
    data = torch.frombuffer(loaded.read(rank, piece), dtype=torch.uint8) if piece.bytes else None
    if data is not None:
        whole.reshape(-1).view(torch.uint8).copy_(data)
    return whole


def _copied(moment: Moment, worker: str, held: Mapping[int, Layer], shared: Any) -> Part:
    """Return a copy of the layers of which this worker is the first holder."""
    assignment = moment.assignment
    mine = [held[n] for n in sorted(held) if assignment.holders(n)[0] == worker]
    tensors: dict[str, Tensor] = {}
    own = {str(layer.number): encode(state_of(layer), _place(layer), tensors) for layer in mine}
    pieces, at = [], 0
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        pieces.append(
            Piece(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=shape,
                offsets=(0,) * len(shape),
                sizes=shape,
                at=at,
                bytes=tensor.nbytes,
            )
        )
        at += tensor.nbytes
    rank = assignment.workers.index(worker)
    shard = Shard(rank=rank, pieces=tuple(pieces), own=own, shared=shared)
    described = msgspec.json.encode(shard)
    slot = bytearray(at + len(described))
    slot[at:] = described
    for piece, tensor in zip(pieces, tensors.values(), strict=True):
        if piece.bytes:
            into = torch.frombuffer(slot, dtype=torch.uint8, count=piece.bytes, offset=piece.at)
            into.copy_(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8))
    generation, _, token = moment.name.partition(" ")
    order = Order(
        slot=0,
        tiers=(PATH,),
        generation=int(generation),
        step=moment.step,
        token=token,
        run="",
        ranks=len(assignment.workers),
        rank=rank,
        good="",
        bytes=at,
        described=len(described),
        owner="",
    )
    return Part(order, memoryview(slot))
