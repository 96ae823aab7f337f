"""A small DDP job for the tests of deployments; it ends by a drain."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.torchrun import attach

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
loom = attach()
loom.manage(optimizer)
step = 0
while loom.step(step):
    time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.rand(4, 8)).square().mean().backward()
    optimizer.step()
    step += 1
loom.close()
dist.destroy_process_group()
