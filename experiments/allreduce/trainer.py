"""One rank of the lab: a torchft trainer that records every step, and the loss afterwards.

The weights at each mark are stored and evaluated after the run, shared among the ranks, so that
this takes no time of the run. It also trains without a Weaver.
"""

import argparse
import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing import HTTPTransport

from experiments.allreduce.model import Text, Workload, build, optimizer_of, set_rate
from torchloom_threadlet.compression import MODES, CompressedProcessGroup, Figures
from torchloom_threadlet.torchft import attach

STORE_PORT = 29400
PROCESS_GROUP_TIMEOUT_S = 90.0
SETTLING_STEPS = 3
"""Before the clock starts: connections, allocations, caches."""

LAST, ENDED = "last step", "ended"


class WatchedGroup(CompressedProcessGroup):
    """Keeps a copy of the figures for the journal."""

    last = Figures()

    def take_figures(self) -> Any:
        """Return bytes and times of the allreduces since the last call."""
        self.last = super().take_figures()
        return self.last


class ByDataLink(HTTPTransport):  # type: ignore[misc]
    """Sends the state to a peer over the shaped link, like the gradients."""

    def __init__(self, address: str) -> None:
        super().__init__(timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S), num_chunks=0)
        self._address = address

    def metadata(self) -> str:
        """Return the address of the state."""
        return str(super().metadata()).replace(socket.gethostname(), self._address, 1)


class Rank:
    """One replica group."""

    def __init__(self, options: argparse.Namespace, workload: Workload) -> None:
        self._options, self._workload = options, workload
        self._text = Text(workload)
        self._model = build(workload, self._text, options.seed)
        self._journal = (options.out / f"rank{options.rank}.jsonl").open("w", buffering=1)
        self._stored: list[tuple[int, float, dict[str, torch.Tensor]]] = []
        self._loom = attach(group=f"g{options.rank}")
        # One for the group alone, as with torchrun; rank 0's also makes all ranks stop at one step.
        self._store = TCPStore(options.control, STORE_PORT, is_master=True, wait_for_workers=False)
        self._shared = TCPStore(options.first, STORE_PORT, is_master=False)
        parameters = list(self._model.parameters())
        self._group = WatchedGroup(
            ProcessGroupGloo(timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S)),
            options.mode,
            topk_share=options.topk_share,
            powersgd_rank=options.powersgd_rank,
            parameters=parameters,
        )
        self._inner = optimizer_of(workload, parameters)
        self._manager = Manager(
            pg=self._group,
            load_state_dict=self._load,
            state_dict=lambda: {
                "model": self._model.state_dict(),
                "optimizer": self._inner.state_dict(),
            },
            min_replica_size=options.ranks,
            use_async_quorum=False,
            init_sync=False,
            quorum_retries=100,
            timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S),
            quorum_timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S),
            replica_id=self._loom.group,
            rank=0,
            world_size=1,
            store_addr=options.control,
            store_port=STORE_PORT,
            lighthouse_addr=options.lighthouse,
            hostname=options.control,
            checkpoint_transport=ByDataLink(options.data),
        )

    def train(self) -> None:
        """Train for the given time, then evaluate the stored weights."""
        optimizer = Optimizer(self._manager, self._inner)
        parallel = DistributedDataParallel(self._manager, self._model)
        self._loom.manage(self._manager, optimizer)
        begun = None
        mark = 0
        while not self._is_last():
            before = time.monotonic()
            step = self._manager.current_step()
            waited_ns = self._loom._worker.phases.waited_ns
            mode = self._group.mode
            set_rate(self._inner, self._workload, step)
            optimizer.zero_grad()
            loss = parallel(self._text.batch(self._options.seed, step, self._options.rank))
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            waited_s = (self._loom._worker.phases.waited_ns - waited_ns) / 1e9
            made = self._manager.current_step()
            self._loom.step(loss=loss.item())
            if begun is None:
                if made >= SETTLING_STEPS:
                    begun = now
                    self._note("begun", monotonic_s=now, step=made)
                continue
            figures = self._group.last
            self._note(
                "step",
                step=made,
                t=now - begun,
                loss=loss.item(),
                mode=mode,
                step_time=now - before,
                compute=now - before - waited_s,
                compress=figures.cost.compress_s,
                wire=figures.cost.wire_s,
                overlap=figures.overlap_s,
                bytes=figures.cost.sent_bytes,
                gradient=figures.gradient_bytes,
                reductions=figures.reductions,
                committed=made > step,
                participants=self._manager.num_participants(),
            )
            if now - begun >= mark * self._options.mark_s:
                if mark % self._options.ranks == self._options.rank:
                    state = self._model.state_dict()
                    stored = {name: value.clone() for name, value in state.items()}
                    self._stored.append((made, now - begun, stored))
                mark += 1
            if self._options.rank == 0 and now - begun >= self._options.seconds:
                self._say_last(made)
        self._try()

    def _say_last(self, made: int) -> None:
        """Set the step at which all stop; no rank can have made it before this rank's next."""
        if not self._shared.check([LAST]):
            self._shared.set(LAST, str(made + 1))

    def _is_last(self) -> bool:
        if not self._shared.check([LAST]):
            return False
        return self._manager.current_step() >= int(self._shared.get(LAST))

    def _try(self) -> None:
        self._note("trained", sidecar_cpu_s=cpu_s(psutil.Process().children()))
        self._manager.shutdown(wait=False)
        tried = self._text.tried()
        for step, t, state in self._stored:
            self._model.load_state_dict(state)
            with torch.no_grad():
                self._note("mark", step=step, t=t, tried=self._model(tried).item())
        self._note("ended")
        self._loom.close()
        self._shared.set(f"{ENDED} {self._options.rank}", "")
        if self._options.rank == 0:  # the owner of the store
            self._shared.wait([f"{ENDED} {rank}" for rank in range(self._options.ranks)])

    def _load(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._inner.load_state_dict(state["optimizer"])

    def _note(self, event: str, **fields: object) -> None:
        self._journal.write(json.dumps({"event": event, **fields}) + "\n")


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the processor time that processes which still run have used."""
    used_s = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system
    return used_s


def main() -> None:
    """Train one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--control", required=True, help="this rank's address for the stores")
    parser.add_argument("--data", required=True, help="its address on the shaped link")
    parser.add_argument("--first", required=True, help="rank 0's control address")
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--mode", choices=MODES, default="none", help="to begin with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mark-s", type=float, default=5.0)
    parser.add_argument("--topk-share", type=float, required=True)
    parser.add_argument("--powersgd-rank", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    add_workload(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    Rank(options, workload_of(options)).train()


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of the workload."""
    for field in fields(Workload):
        kind: Callable[[str], Any] = float if isinstance(field.default, float) else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the requested workload."""
    return Workload(**{field.name: getattr(options, field.name) for field in fields(Workload)})


if __name__ == "__main__":
    main()
