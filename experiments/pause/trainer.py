"""One replica group of a small torchft run, DDP or DiLoCo, that goes on until it is ended.

A line of JSON for every step (DiLoCo: every inner step) tells when, at which step of the run's
counter, and whether it was committed.
"""

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from torchloom_threadlet.torchft import TorchftLoom, attach

SYNC_EVERY = 10
WIDTH = 64


class Run:
    """Model, manager and log of one group."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._pause_s = options.step_ms / 1000
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.loom: TorchftLoom = attach()
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
            min_replica_size=1,
            load_state_dict=self._load,
            state_dict=self._state,
            use_async_quorum=False,
            quorum_retries=100,
            timeout=timedelta(seconds=20),
            quorum_timeout=timedelta(seconds=60),
            replica_id=self.loom.group,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self._store.port,
            lighthouse_addr=options.lighthouse,
            hostname="localhost",
        )
        self._log = options.log.open("a", buffering=1)

    def ddp(self) -> None:
        """Take part in a quorum at every step."""
        optimizer = Optimizer(self.manager, self.inner)
        parallel = DistributedDataParallel(self.manager, self.model)
        self.loom.manage(self.manager, optimizer)
        while True:
            optimizer.zero_grad()
            before = self.manager.current_step()
            loss = self._loss(parallel)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self._tell(self.manager.current_step() > before)
            if not self.loom.step(loss=loss):
                break

    def diloco(self) -> None:
        """Take part in a quorum at every tenth step."""
        self.loom.manage(self.manager, self.inner)
        with DiLoCo(
            self.manager, [self.model], self.inner, self.outer, sync_every=SYNC_EVERY
        ) as diloco:
            while True:
                self.inner.zero_grad()
                before = self.manager.current_step()
                loss = self._loss(self.model)
                loss.backward()  # type: ignore[no-untyped-call]
                self.inner.step()
                synced = diloco._local_step == 0
                self._tell(not synced or self.manager.current_step() > before)
                if not self.loom.step(loss=loss):
                    break

    def _loss(self, model: nn.Module) -> torch.Tensor:
        time.sleep(self._pause_s)
        x = torch.randn(16, WIDTH)
        loss: torch.Tensor = nn.functional.mse_loss(model(x), x[:, :1])
        return loss

    def _tell(self, committed: bool) -> None:
        line = {
            "t": time.time(),
            "step": self.manager.current_step(),
            "committed": committed,
            "participants": self.manager.num_participants(),
        }
        self._log.write(json.dumps(line) + "\n")

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "inner": self.inner.state_dict(),
            "outer": self.outer.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["inner"])
        self.outer.load_state_dict(state["outer"])


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=["ddp", "diloco"])
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    options = parser.parse_args()
    run = Run(options)
    if options.algorithm == "ddp":
        run.ddp()
    else:
        run.diloco()


if __name__ == "__main__":
    main()
