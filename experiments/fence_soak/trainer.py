"""A trainer with knobs that must not differ, which records each step and each setting.

Of LocalSGD and DiLoCo a step is a sync, and what it was made with is how long its round was.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim import SGD, AdamW
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from experiments.chaos.record import note
from experiments.fence_soak.script import (
    KNOBS,
    PARTS,
    RATES,
    SHORTEST_ROUND,
    STEPS_A_RATE,
    WIRES,
)
from torchloom_threadlet import demo_trainer, torchft
from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter
from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.throttled import ThrottledProcessGroup
from torchloom_threadlet.trainer.worker import Worker
from torchloom_threadlet.training.muon import MuonWithAdamW
from torchloom_threadlet.training.switchable import SwitchableOptimizer

PROCESS_GROUP_TIMEOUT_S = 5.0
INNER_STEP_S = 0.003
WARMUP_STEPS = 5
SEED = 0
DTYPES = dict(zip(WIRES, (torch.float32, torch.float64, torch.bfloat16), strict=True))


class ShapedGroup(CompressedProcessGroup):
    """Precedes each reduction by one whose size and type are knobs.

    If they differ between two ranks, gloo aborts both.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(_gloo(), parameters=parameters)
        self.width, self.wire = 16, WIRES[0]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduce a tensor of the knobs' shape, then the given one."""
        if self.size() > 1:
            shaped = torch.ones(self.width, dtype=DTYPES[self.wire])
            super().allreduce([shaped], opts).wait()
        return super().allreduce(tensors, opts)

    def register(self, loom: Any) -> None:
        """Register the knobs ``width`` and ``wire``."""
        for name, form in (
            ("width", {"kind": "int", "low": 1}),
            ("wire", {"kind": "choice", "choices": WIRES}),
        ):
            get, put = partial(getattr, self, name), partial(setattr, self, name)
            loom.knob(name, get, put, **form, fence="run")


class WatchedAdapter(TorchftAdapter):
    """Records the values of each step, and each knob as it is set.

    Attributes
    ----------
    used : callable
        Returns the values of this step, None if the other ranks may have others.
    shared : callable
        Returns the weights that all ranks share after a step.
    log : Path
        Written at each committed step: this incarnation has the weights.
    """

    used: Callable[[], dict[str, Any] | None]
    shared: Callable[[], Iterable[torch.Tensor]]
    log: Path
    _committed: bool | None = None

    def bind(self, loom: Any, worker: Worker) -> None:
        """Record each setting of a knob, if the script changes it."""
        super().bind(loom, worker)
        register = loom.knob

        def knob(name: str, get: Any, set: Any, **form: Any) -> None:
            def put(value: Any) -> None:
                set(value)
                note("set", knob=name, value=value, step=self._manager.current_step())

            register(name, get, put, **form)

        loom.knob = knob

    def manage(self, manager: Any, *parts: Any, **options: Any) -> None:
        """Watch the outcome of each step."""
        super().manage(manager, *parts, **options)
        should_commit = manager.should_commit

        def decided(*arguments: Any, **named: Any) -> Any:
            self._committed = False
            self._committed = should_commit(*arguments, **named)
            return self._committed

        manager.should_commit = decided

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Record a step that is over, before any change after it."""
        if self._committed is not None:
            note(
                "step",
                step=self._manager.current_step(),
                quorum=self._manager._quorum_id,
                committed=self._committed,
                values=self.used(),
                weights=digest(self.shared()),
            )
            if self._committed:
                self.log.write_text("\n")
            self._committed = None
        return super().boundary(step)


def _gloo() -> ProcessGroupGloo:
    return ProcessGroupGloo(timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S))


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return some digits that are equal if and only if all the numbers are, and finite."""
    found = hashlib.sha256()
    for tensor in tensors:
        if not tensor.isfinite().all():
            raise FloatingPointError("a weight is no number")
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


class Trainer:
    """One replica group's model, its loom and its Manager."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._images, self._labels = demo_trainer.digits()
        self._model = demo_trainer.build(SEED)
        self._optimizer: Any = None
        self._healed = False
        self._loom: Any = torchft.attach()
        self._loom.adapter.log = options.log
        self._loom.adapter.shared = self._model.parameters
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def ddp(self) -> None:
        """Train step by step."""
        weights = list(self._model.parameters())
        inner = self._optimizer = SwitchableOptimizer(
            weights,
            {
                "adamw": partial(AdamW, lr=1e-3),
                "sgd": partial(SGD, lr=0.05, momentum=0.9),
                "muon": partial(MuonWithAdamW, by_adamw=weights[-2:]),
            },
            start="adamw",
            warmup_steps=WARMUP_STEPS,
        )
        group = ShapedGroup(weights)
        manager = self._manager(group)
        optimizer = Optimizer(manager, inner)
        self._loom.manage(manager, optimizer)
        group.register(self._loom)
        self._loom.adapter.used = lambda: {
            "lr": float(inner.param_groups[0]["lr"]),
            "width": group.width,
            "wire": group.wire,
            "compression": group.mode,
            "optimizer": inner.active,
        }
        self._steps(manager, optimizer)

    def tuned(self) -> None:
        """Train step by step over a link whose speed changes with the steps."""
        weights = list(self._model.parameters())
        inner = self._optimizer = AdamW(weights, lr=1e-3)
        link = ThrottledProcessGroup(_gloo())
        group = CompressedProcessGroup(link, parameters=weights)
        manager = self._manager(group)
        optimizer = Optimizer(manager, inner)
        self._loom.manage(manager, optimizer)
        self._loom.adapter.used = lambda: {
            "compression": group.mode,
            "concurrent_allreduces": group.concurrent_allreduces,
            "bucket_bytes": group.bucket_bytes,
        }

        def slow() -> None:
            link.bytes_per_s = RATES[manager.current_step() // STEPS_A_RATE % len(RATES)]

        self._steps(manager, optimizer, slow)

    def _steps(
        self, manager: Manager, optimizer: Optimizer, before: Callable[[], None] = lambda: None
    ) -> None:
        parallel = DistributedDataParallel(manager, self._model)
        while True:
            before()
            optimizer.zero_grad()
            rank, ranks = manager.participating_rank() or 0, max(manager.num_participants(), 1)
            rows = self._rows(manager.current_step(), rank, ranks)
            time.sleep(self._options.step_ms / 1000)
            loss = self._loss(parallel, rows)
            loss.backward()
            optimizer.step()
            self._loom.step(loss=loss)

    def rounds(self) -> None:
        """Train in rounds, each a sync and the steps before it."""
        manager = self._manager(_gloo())
        inner = self._optimizer = AdamW(self._model.parameters(), lr=1e-3)
        self._loom.manage(manager, inner)
        local_sgd, parts = self._local_sgd(manager), PARTS[self._options.algorithm]
        self._loom.local_sgd(local_sgd)

        def used() -> dict[str, Any] | None:
            # A round in which a peer's state was taken began before its knobs were known.
            healed, self._healed = self._healed, False
            if healed:
                return None
            return {
                "lr": float(inner.param_groups[0]["lr"]),
                "sync_every": local_sgd._sync_every * parts,
                "fragment_sync_delay": getattr(local_sgd, "_fragment_sync_delay", 0),
            }

        self._loom.adapter.used = used
        number = 0
        with local_sgd:
            while True:
                number += 1
                inner.zero_grad()
                time.sleep(INNER_STEP_S)
                loss = self._loss(self._model, self._rows(number + os.getpid(), 0, 1))
                loss.backward()
                inner.step()
                self._loom.step(loss=loss)

    def _local_sgd(self, manager: Manager) -> Any:
        model, inner = self._model, self._optimizer
        if self._options.algorithm == "local_sgd":
            return LocalSGD(manager, model, inner, SHORTEST_ROUND)
        assert isinstance(model, nn.Sequential)
        fragments = [model[:2], model[2:]]
        outer = [SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in fragments]
        diloco = DiLoCo(
            manager, fragments, inner, outer, sync_every=SHORTEST_ROUND, fragment_sync_delay=1
        )
        self._loom.adapter.shared = lambda: [
            weights for part in diloco._fragments for weights in part.original_parameters.values()
        ]
        return diloco

    def _manager(self, group: Any) -> Manager:
        return Manager(
            pg=group,
            load_state_dict=self._load,
            state_dict=lambda: {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
            },
            min_replica_size=1,
            use_async_quorum=False,
            quorum_retries=100,
            timeout=timedelta(seconds=10),
            quorum_timeout=timedelta(seconds=60),
            replica_id=self._loom.group,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self._store.port,
            lighthouse_addr=self._options.lighthouse,
            hostname="localhost",
        )

    def _load(self, state: dict[str, Any]) -> None:
        self._healed = True
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _rows(self, step: int, rank: int, ranks: int) -> torch.Tensor:
        return demo_trainer.shard(step, rank, ranks, len(self._images), SEED)

    def _loss(self, model: Any, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(self._images[rows]), self._labels[rows])


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=KNOBS, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--step-ms", type=float, required=True, help="of DDP")
    parser.add_argument("--log", type=Path, required=True)
    options, _ = parser.parse_known_args()  # the slots of experiments/chaos pass more
    torch.set_num_threads(1)
    torchft.TorchftAdapter = WatchedAdapter  # type: ignore[misc]
    trainer = Trainer(options)
    if options.algorithm in PARTS:
        trainer.rounds()
    elif options.algorithm == "tuned":
        trainer.tuned()
    else:
        trainer.ddp()


if __name__ == "__main__":
    main()
