"""A trainer: each group learns from one rollout a step, which takes a device so long.

Groups are torchft's, so that a group may leave or join between two steps. It writes the time of
each step that was committed; the sleep stands for the device.
"""

import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from experiments.role_balance.settings import LIGHTHOUSE, TRAIN_S, setting
from torchloom_threadlet.rollouts import RolloutSource
from torchloom_threadlet.torchft import attach


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    loom = attach()
    source = RolloutSource(loom=loom, rollouts_per_step=1, max_staleness=50)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=lambda state: _load(model, inner, state),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=30),
        quorum_timeout=timedelta(seconds=60),
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=setting(LIGHTHOUSE),
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, inner)
    parallel = DistributedDataParallel(manager, model)
    loom.manage(manager, optimizer)

    source.publish(model.state_dict())
    log = Path(f"samples-{loom.group}.log").open("a", buffering=1)  # noqa: SIM115
    going = True
    while going:
        (rollout,) = source.take()
        time.sleep(float(setting(TRAIN_S)))
        committed = False
        while going and not committed:
            optimizer.zero_grad()
            step = manager.current_step()
            rows = torch.tensor(rollout.batch["rows"])
            loss = nn.functional.cross_entropy(parallel(rows), rows[:, :4].argmax(1))
            loss.backward()
            optimizer.step()
            if committed := manager.current_step() > step:
                log.write(f"{time.time()}\n")
                if manager.participating_rank() == 0:
                    source.publish(model.state_dict())
            going = loom.step(loss=loss, **source.metrics())


def _load(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict) -> None:  # type: ignore[type-arg]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    main()
