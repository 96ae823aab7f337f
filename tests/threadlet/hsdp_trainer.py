"""HSDP for the tests: FSDP2 within a group that torchrun starts, torchft across the groups."""

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchft import Manager, Optimizer, ProcessGroupGloo

from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.torchft import attach

SOON = timedelta(seconds=20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True, help="a folder; a file a rank")
    parser.add_argument("--step-s", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    loom = attach()
    model = torch.nn.Linear(64, 64)  # large enough that each shard is compressed
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state):
        with torch.no_grad():
            for own, theirs in zip(model.parameters(), state["shards"], strict=True):
                own.to_local().copy_(theirs)
        inner.load_state_dict(state["inner"])

    def save():
        shards = [weights.to_local().clone() for weights in model.parameters()]
        return {"shards": shards, "inner": inner.state_dict()}

    across = CompressedProcessGroup(ProcessGroupGloo(timeout=SOON))
    manager = Manager(
        pg=across,
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        use_async_quorum=False,
        quorum_retries=100,
        timeout=SOON,
        quorum_timeout=timedelta(seconds=60),
        replica_id=loom.group,
        hostname="localhost",
    )
    optimizer = Optimizer(manager, inner)
    loom.manage(manager, optimizer)
    model.set_all_reduce_hook(lambda gradient: manager.allreduce(gradient).wait())
    with (options.journal / f"{loom.worker}.jsonl").open("a", buffering=1) as journal:
        while True:
            optimizer.zero_grad()
            model(torch.rand(4, 64)).square().sum().backward()
            time.sleep(options.step_s)
            step, mode = manager.current_step(), across.mode
            optimizer.step()
            weights = [float(w.to_local().double().sum()) for w in model.parameters()]
            line = {
                "step": manager.current_step(),
                "committed": manager.current_step() > step,
                "lr": inner.param_groups[0]["lr"],
                "mode": mode,
                "weights": weights,
                "participants": manager.num_participants(),
            }
            journal.write(json.dumps(line) + "\n")
            if not loom.step():
                return


if __name__ == "__main__":
    main()
