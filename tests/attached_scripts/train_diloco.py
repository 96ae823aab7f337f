"""A small torchft DiLoCo job whose loop is nested as in torchft's example of the same name."""

import os
from datetime import timedelta

import torch
from torch import nn, optim
from torchft import Manager, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport
from torchft.local_sgd import DiLoCo

REPLICA_GROUP_ID = int(os.environ.get("REPLICA_GROUP_ID", 0))


def main():
    pg = ProcessGroupGloo(timeout=timedelta(seconds=5))
    transport = PGTransport(pg, timeout=timedelta(seconds=10), device=torch.device("cpu"))
    trained = {}

    def state_dict():
        return {name: part.state_dict() for name, part in trained.items()}

    def load_state_dict(state):
        for name, part in trained.items():
            part.load_state_dict(state[name])

    manager = Manager(
        pg=pg,
        use_async_quorum=False,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_diloco_{REPLICA_GROUP_ID}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=transport,
    )

    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inner_optimizer = optim.AdamW(m.parameters(), lr=4e-4)
    outer_optimizer: optim.Optimizer = torch.optim.SGD(
        m.parameters(), lr=0.7, momentum=0.9, nesterov=True
    )
    trained.update(model=m, inner=inner_optimizer, outer=outer_optimizer)
    criterion = nn.CrossEntropyLoss()

    with DiLoCo(manager, [m], inner_optimizer, outer_optimizer, sync_every=10) as diloco:
        while True:
            for _ in range(20):
                inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
                inner_optimizer.zero_grad()
                loss = criterion(m(inputs), labels)
                loss.backward()
                inner_optimizer.step()
                if manager.current_step() % 100 == 0:
                    print(f"[{manager.current_step()}] loss = {loss.item()}")


if __name__ == "__main__":
    main()
