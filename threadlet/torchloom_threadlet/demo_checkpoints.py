"""Trains an MLP on scikit-learn's digits by DDP, and saves checkpoints in three tiers.

The trainer of ``torchloom demo --scenario checkpoints``, for torchrun: each rank is on a node of
its own, as far as torchLoom knows. The lines for torchLoom are marked.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torchloom_threadlet.digits import digits
from torchloom_threadlet.torchrun import attach  # torchLoom 1

_BATCH, _WIDTH = 32, 512
_NEVER_S = 1e6


def main() -> None:
    """Train until the last step, or until all ranks leave; write a line for each step."""
    options = _options()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    node, rack = options.nodes.read_text().splitlines()[rank].split()
    os.environ |= {"TORCHLOOM_NODE": node, "TORCHLOOM_RACK": rack}

    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    layers = (nn.Linear(64, _WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(_WIDTH, _WIDTH))
    network = nn.Sequential(*layers, nn.GELU(), nn.Linear(_WIDTH, 10))
    # Else DDP regroups the gradients after the first step of each start, and three ranks or more
    # add them up in another order: the last bits of a resumed run would be others.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(*digits())
    loader = DataLoader(data, _BATCH, sampler=DistributedSampler(data, seed=options.seed))
    torch.manual_seed(options.seed + rank)

    loom = attach()  # torchLoom 2
    loom.manage(optimizer)  # torchLoom 3
    tiers = {} if options.undisturbed else {"memory_every_s": options.memory_every_s}
    checkpoints = loom.checkpoints(  # torchLoom 4: the newest checkpoint is loaded here
        model,
        optimizer,
        path=options.path,
        every_s=_NEVER_S if options.undisturbed else options.every_s,
        remote=options.remote,
        remote_every_s=_NEVER_S if options.undisturbed else options.remote_every_s,
        **tiers,
    )
    of_all = {"node": node, "pid": os.getpid(), "from": checkpoints.step}
    of_all["memory"] = "" if options.undisturbed else checkpoints.tiers["memory"].place.place
    with Path(f"{options.journal}-{rank}.jsonl").open("a", buffering=1) as journal:
        for step, (images, labels) in checkpoints.batches(loader, options.steps):
            time.sleep(options.step_ms / 1000)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            row = {
                "t": time.time(),
                "step": step,
                "committed": True,
                "loss": loss.item(),
                "every_s": {name: tier.every_s for name, tier in checkpoints.tiers.items()},
                "saving": [name for name, tier in checkpoints.tiers.items() if tier.is_saving],
            }
            journal.write(json.dumps(row | of_all) + "\n")
            if not loom.step(loss=loss):  # torchLoom 5
                break
    loom.close()
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True, help="folder of the tier path")
    parser.add_argument("--remote", required=True, help="folder or URL of the tier remote")
    parser.add_argument("--every-s", type=float, default=600.0)
    parser.add_argument("--memory-every-s", type=float, default=60.0)
    parser.add_argument("--remote-every-s", type=float, default=3600.0)
    parser.add_argument("--undisturbed", action="store_true", help="save nothing")
    parser.add_argument("--nodes", type=Path, required=True, help="node and rack of each rank")
    parser.add_argument("--journal", required=True, help="of rank 0: <journal>-0.jsonl")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-ms", type=float, default=0.0, help="simulated work per step, ms")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
