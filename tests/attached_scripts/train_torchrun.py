"""A small DDP job under torchrun, shaped like PyTorch's own example of it."""

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 1_000_000


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()

    for epoch in range(EPOCHS):
        for _ in range(20):
            inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
        if epoch % 100 == 0:
            print(f"[{epoch}] loss = {loss.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
