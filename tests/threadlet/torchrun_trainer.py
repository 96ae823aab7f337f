"""DDP or FSDP2 under torchrun for the tests; the journal has a line for each step of a rank."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.torchrun import attach


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--last-rank-ends-at", type=int, help="without notice to the others")
    parser.add_argument("--close", action="store_true", help="the last rank calls loom.close")
    parser.add_argument("--fails-on", type=int, help="the rank on which the knob odd fails")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2, else DDP")
    parser.add_argument("--saves-nothing", action="store_true", help="no checkpoint")
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--default-device", help="of new tensors; the training is on the CPU")
    parser.add_argument("--default-dtype", default="float32")
    parser.add_argument("--dies-when-restarted", help="before it attaches, with this error")
    options = parser.parse_args()
    if options.dies_when_restarted and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        raise RuntimeError(options.dies_when_restarted)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    if options.fsdp:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.set_default_device(options.default_device)
    torch.set_default_dtype(getattr(torch, options.default_dtype))
    loom = attach()
    loom.manage(optimizer)
    if options.checkpoints:
        loom.checkpoints(model, optimizer, path=options.checkpoints)
    odd = {"value": 0}

    def set_odd(value):
        if rank == options.fails_on and value:
            raise ValueError("not here")
        odd["value"] = value

    loom.knob("odd", lambda: odd["value"], set_odd, kind="int", fence="run")
    saved = options.journal / "saved.pt"
    if saved.exists():
        loom.load_state_dict(torch.load(saved, weights_only=True))
    alone = options.last_rank_ends_at is not None
    replica = model if alone or options.fsdp else DistributedDataParallel(model)
    steps = options.last_rank_ends_at if alone and rank == last else options.steps
    with (options.journal / f"{rank}.jsonl").open("a", buffering=1) as journal:
        loom.on_drain(lambda: journal.write(json.dumps({"event": "drain"}) + "\n"))
        for _ in range(steps):
            optimizer.zero_grad()
            replica(torch.rand(4, 8, dtype=torch.float32, device="cpu")).square().sum().backward()
            time.sleep(options.step_s)
            optimizer.step()
            shards = [getattr(w, "full_tensor", lambda w=w: w)() for w in model.parameters()]
            weights = [float(w.detach().double().sum()) for w in shards]
            lr = optimizer.param_groups[0]["lr"]
            line = {"event": "step", "lr": lr, "odd": odd["value"], "weights": weights}
            going = loom.step()
            line["step"] = loom.state_dict()["step"]
            journal.write(json.dumps(line) + "\n")
            if rank == 0 and not options.saves_nothing:
                torch.save(loom.state_dict(), saved.with_suffix(".new"))
                saved.with_suffix(".new").rename(saved)
            if not going:
                break
        if options.close or not alone:
            loom.close()
        if alone:
            journal.write(json.dumps({"event": "waits"}) + "\n")
            dist.barrier()  # an ended rank waits for the others here
        journal.write(json.dumps({"event": "end"}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
