"""A small HSDP job: FSDP2 within the group that torchrun starts, torchft across the groups."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchft import Manager, Optimizer, ProcessGroupGloo

REPLICA_GROUP_ID = int(os.environ.get("REPLICA_GROUP_ID", 0))


def main():
    dist.init_process_group("gloo")
    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    fully_shard(m, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    inner = optim.AdamW(m.parameters())

    def state_dict():
        return {"model": m.state_dict(), "optim": inner.state_dict()}

    def load_state_dict(state):
        m.load_state_dict(state["model"])
        inner.load_state_dict(state["optim"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        use_async_quorum=False,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_hsdp_{REPLICA_GROUP_ID}",
        timeout=timedelta(seconds=30),
    )
    m.set_all_reduce_hook(lambda gradient: manager.allreduce(gradient).wait())
    optimizer = Optimizer(manager, inner)
    criterion = nn.CrossEntropyLoss()

    while True:
        inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
        optimizer.zero_grad()
        loss = criterion(m(inputs), labels)
        loss.backward()
        optimizer.step()
        if manager.current_step() % 100 == 0:
            print(f"[{manager.current_step()}] loss = {loss.item()}")


if __name__ == "__main__":
    main()
