"""A small torchft DDP job whose loop is nested as in torchft's example of the same name."""

import os
from datetime import timedelta

import torch
from torch import nn, optim
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport

REPLICA_GROUP_ID = int(os.environ.get("REPLICA_GROUP_ID", 0))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def main():
    device = torch.device("cpu")
    pg = ProcessGroupGloo(timeout=timedelta(seconds=5))
    transport = PGTransport(pg, timeout=timedelta(seconds=10), device=device)
    trained = {}

    def state_dict():
        return {"model": trained["model"].state_dict(), "optim": trained["optim"].state_dict()}

    def load_state_dict(state):
        trained["model"].load_state_dict(state["model"])
        trained["optim"].load_state_dict(state["optim"])

    manager = Manager(
        pg=pg,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{REPLICA_GROUP_ID}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=transport,
    )

    m = Net().to(device)
    m = DistributedDataParallel(manager, m)
    optimizer = Optimizer(manager, optim.AdamW(m.parameters()))
    criterion = nn.CrossEntropyLoss()
    trained.update(model=m, optim=optimizer)
    profiler = torch.profiler.profile()  # an interpreter that exits while it runs may hang
    profiler.start()

    while True:
        for _ in range(20):
            inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
            optimizer.zero_grad()
            loss = criterion(m(inputs), labels)
            loss.backward()
            optimizer.step()
            if manager.current_step() % 100 == 0:
                print(f"[{manager.current_step()}] loss = {loss.item()}")


if __name__ == "__main__":
    main()
