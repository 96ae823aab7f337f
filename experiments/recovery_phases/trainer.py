"""A small training script that is slow in one phase of its start, as a file says.

With torchrun it saves and restores checkpoints; with torchft a lost group copies a peer's state.
After each committed step it writes the step and the time to a journal.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH = 8, 64


class Slow:
    """Sleeps in the phase that the file names, once."""

    def __init__(self, file: Path) -> None:
        self._phase, self._seconds = json.loads(file.read_text())

    def at(self, phase: str) -> None:
        """Sleep if this is the phase."""
        if phase == self._phase:
            self._phase = ""
            time.sleep(self._seconds)


class Loader:
    """Random batches without an end; the first may take long."""

    def __init__(self, slow: Slow) -> None:
        self._slow = slow
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._slow.at("data_loader")
        while True:
            self.position += 1
            yield torch.randn(BATCH, WIDTH)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position; it may take long."""
        self._slow.at("restore")
        self.position = state["position"]


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--lighthouse", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    slow = Slow(options.folder / "slow.json")
    slow.at("import")
    worker = f"{os.environ.get('TORCHLOOM_GROUP', 'g0')}-{os.environ.get('RANK', '0')}"
    with (options.folder / f"{worker}.steps").open("a", buffering=1) as journal:
        steps = by_torchft if options.lighthouse else by_torchrun
        for step in steps(options, slow):
            journal.write(f"{os.getpid()} {step} {time.time()!r}\n")
            time.sleep(options.step_s)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def by_torchrun(options: argparse.Namespace, slow: Slow) -> Iterator[int]:
    """Yield each step of a rank under torchrun."""
    from torchloom_threadlet.torchrun import attach

    loom = attach()
    dist.init_process_group("gloo")
    model, optimizer = model_and_optimizer()
    model, loader = DistributedDataParallel(model), Loader(slow)
    slow.at("build")
    loom.manage(optimizer)
    place = options.folder / "checkpoints"
    checkpoints = loom.checkpoints(model, optimizer, loader, path=place, every_s=1.0)
    step = checkpoints.step
    for data in loader:
        step += 1
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        slow.at("first_step")
        loss.backward()
        optimizer.step()
        goes_on = loom.step(step, loss=loss)
        yield step
        if not goes_on:
            break


def by_torchft(options: argparse.Namespace, slow: Slow) -> Iterator[int]:
    """Yield each committed step of a group under torchft."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import DistributedDataParallel as Replicated
    from torchft import Manager, Optimizer, ProcessGroupGloo

    from torchloom_threadlet.torchft import attach

    loom = attach()
    model, inner = model_and_optimizer()
    slow.at("build")

    def load(state: dict[str, Any]) -> None:
        slow.at("state_transfer")
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=os.environ["TORCHLOOM_GROUP"],
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=options.lighthouse,
        use_async_quorum=False,
        timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=20),
    )
    optimizer, replicated = Optimizer(manager, inner), Replicated(manager, model)
    loom.manage(manager)
    while True:
        optimizer.zero_grad()
        data = torch.randn(BATCH, WIDTH)
        loss = (replicated(data) - data).square().mean()
        slow.at("first_step")
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            yield manager.current_step()
        if not loom.step(loss=loss):
            break


if __name__ == "__main__":
    main()
