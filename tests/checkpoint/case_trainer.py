"""Trains one case in a process of its own, which saves, and some steps later kills itself."""

import hashlib
import itertools
import logging
import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist

from tests.checkpoint.cases import CASES
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import complete_folders
from torchloom_threadlet.checkpoint.json_state import encode
from torchloom_threadlet.torchrun import attach

STEPS = 24
DEADLINE_S = 60.0


def train(name, folder, rank, ranks, save_at=None, *, plain=False, **options):
    """Write the journal of a rank: each step's loss, and the digest of all states at the end.

    ``plain``: the loop is ``for batch in loader``, without ``checkpoints.batches``.
    """
    sys.stderr = (folder / "errors").open("a", buffering=1)
    logging.basicConfig(force=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if ranks:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        store = f"file://{folder}/store-{'first' if save_at is not None else 'last'}"
        dist.init_process_group("gloo", store, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    case = CASES[name](**options)
    loom = attach()
    torch.manual_seed(100 + rank)
    place = folder / "place"
    checkpoints = loom.checkpoints(*case.parts, path=place)
    journal = (folder / f"journal.{rank}").open("a", buffering=1)
    journal.write(f"begin {checkpoints.step}\n")
    if case.loader is None:
        batches = ((n, torch.rand(4, 3)) for n in range(checkpoints.step + 1, STEPS))
    elif plain:
        endless = itertools.chain.from_iterable(itertools.repeat(case.loader))
        batches = ((n, next(endless)[0]) for n in range(checkpoints.step + 1, STEPS))
    else:
        batches = ((n, batch) for n, [batch] in checkpoints.batches(case.loader, STEPS))
    for step, batch in batches:
        loss = float(case.step(batch).detach())
        journal.write(f"step {step} {loss!r} {torch.rand(()).item()!r} {batch.sum()!r}\n")
        if step == save_at:
            checkpoints.save()
        loom.step(loss=loss)
        if step - 8 == save_at:
            end_s = time.monotonic() + DEADLINE_S
            while not complete_folders(LocalFolder(place)) and time.monotonic() < end_s:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    journal.write(f"end {digest(case.parts)}\n")
    loom.close()


def digest(parts):
    """Return the digest of the states of these parts."""
    tensors = {}
    states = encode([part.state_dict() for part in parts], "", tensors)
    found = hashlib.sha256(repr(states).encode())
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(name.encode())
        found.update(whole.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
