"""Train a stack on scikit-learn's digits with torchft; its depth is a knob.

A start per replica group, beside a lighthouse and a Weaver (``torchloom weaver``):

    python experiments/depth/train.py --lighthouse http://localhost:29510 --group g0
    torchloom knob set depth 6
"""

import argparse
import time
from datetime import timedelta

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from experiments.depth.stack import Depth, Stack
from torchloom_threadlet.torchft import attach
from torchloom_threadlet.training.global_batch import GlobalBatch


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)

    stack = Stack(64, 64, 10, depth=2)
    held = {"stale": False}
    depth = Depth(stack, torch.optim.AdamW, changed=lambda: held.update(stale=True))
    batch = GlobalBatch(len(images), 96, 32)

    def load(state: dict) -> None:
        stack.load_state_dict(state["model"])
        depth.optimizer.load_state_dict(state["optimizer"])
        batch.load_state_dict(state["batch"])

    loom = attach(group=options.group)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {
            "model": stack.state_dict(),
            "optimizer": depth.optimizer.state_dict(),
            "batch": batch.state_dict(),
        },
        min_replica_size=1,
        use_async_quorum=False,
        quorum_retries=100,
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        hostname="localhost",
    )
    optimizer = Optimizer(manager, depth.optimizer)
    loom.knob("depth", depth.get, depth.set, kind="int", low=0, high=32, fence="run")
    loom.manage(manager, optimizer)

    parallel = DistributedDataParallel(manager, stack)
    while manager.current_step() < options.steps:
        optimizer.zero_grad()
        if held["stale"]:  # also after a joiner has taken over the others' depth
            parallel = DistributedDataParallel(manager, stack)
            held["stale"] = False
        time.sleep(options.step_ms / 1000)
        for part in batch.parts(manager, parallel):
            loss = nn.functional.cross_entropy(parallel(images[part.rows]), labels[part.rows])
            (part.weight * loss).backward()
        optimizer.step()
        print(
            f"step {manager.current_step()} groups {manager.num_participants()} "
            f"depth {depth.get()} loss {loss.item():.4f}",
            flush=True,
        )
        if not loom.step(loss=loss):
            return
    manager.shutdown()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--group")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
