"""Small models, their checkpoints written by a writer of this process, and the place they go to."""

import contextlib

import msgspec
import torch
from torch import nn

from torchloom_core.checkpoints.layout import Shard
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_threadlet.checkpoint.pieces import Replica, own_pieces
from torchloom_threadlet.checkpoint.restore import restore
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.slots import Slots
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.checkpoint.writer.orders import Order
from torchloom_threadlet.checkpoint.writer.storing import Part, complete, forget, store


def trained(seed=0, width=8, steps=3):
    """Return a model, its optimizer and its schedule after some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(steps):
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model, optimizer, schedule


def save(
    folder,
    parts,
    *,
    step=1,
    generation=1,
    token="0" * 8,
    rank=0,
    ranks=1,
    keep=0,
    keep_every_s=0.0,
    bases=None,
    base="",
):
    """Write one rank's part of a checkpoint, and the manifest if it is the last one's.

    With ``bases`` and the folder of a ``base`` it is a small one. Return its folder.
    """
    state = TrainingState(parts)
    gathered = state.gather(rank)
    replica = Replica(rank, ranks)
    pieces = own_pieces(gathered.tensors, frozenset(state.steady()), replica, rank)
    size = max(piece.at + piece.bytes for piece, _ in pieces)
    shard = Shard(
        rank=rank,
        pieces=tuple(piece for piece, _ in pieces),
        own=gathered.own,
        shared=gathered.shared,
    )
    described = msgspec.json.encode(shard)
    slots = Slots(size + len(described))
    with contextlib.ExitStack() as stack:
        stack.callback(slots.remove)
        for piece, tensor in pieces:
            slots.view(0, piece).copy_(tensor)
        slots.put(0, size, described)
        order = Order(
            slot=0,
            tiers=("path",),
            good="",
            base=base,
            generation=generation,
            step=step,
            token=token,
            run="run",
            ranks=ranks,
            rank=rank,
            bytes=size,
            described=len(described),
            owner="",
        )
        storage = LocalFolder(folder)
        part = Part(order, memoryview(slots.path.read_bytes()))
        if bases is not None:
            part = bases.small(part)
        store(storage, part, None)
        if bases is not None:
            bases.take(part)
        if rank == ranks - 1:
            assert complete(storage, part, lambda: False) == ""
            forget(storage, keep, keep_every_s)
        return part.folder


def load(folder, parts, rank=0):
    """Load the newest checkpoint into these parts, alone."""
    ranks, place = SavingRanks(), LocalFolder(folder)
    ranks.rank = rank
    return restore(Sources(place, [[place]], [place]), TrainingState(parts), ranks)


def digest(*parts):
    """Return the states of these parts, tensors as bytes, to compare."""
    return [plain(part.state_dict()) for part in parts]


def plain(state):
    if isinstance(state, torch.Tensor):
        return state.dtype, tuple(state.shape), state.numpy().tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [*map(plain, state)] if isinstance(state, list | tuple) else state
