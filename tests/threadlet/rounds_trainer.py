"""LocalSGD or DiLoCo for the tests; the journal has a line for each sync."""

import argparse
import json
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from torchloom_threadlet.torchft import attach

SOON = timedelta(seconds=20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--fragments", type=int, default=0, help="of DiLoCo; 0: LocalSGD")
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--sync-every", type=int, default=8)
    parser.add_argument("--step-s", type=float, default=0.01)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = [torch.nn.Linear(16, 16) for _ in range(max(1, options.fragments))]
    model = torch.nn.Sequential(*parts)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    loom = attach(group=options.group)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=SOON),
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=lambda: model.state_dict(),
        min_replica_size=1,
        use_async_quorum=False,
        quorum_retries=100,
        timeout=SOON,
        quorum_timeout=timedelta(seconds=60),
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        hostname="localhost",
    )
    loom.manage(manager, inner)
    every = options.sync_every
    if options.fragments:
        outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9) for part in parts]
        rounds = DiLoCo(manager, parts, inner, outer, every, fragment_sync_delay=options.delay)
    else:
        rounds = LocalSGD(manager, model, inner, every)
    loom.local_sgd(rounds)
    begun = 0
    with options.journal.open("a", buffering=1) as journal, rounds:
        while True:
            inner.zero_grad()
            time.sleep(options.step_s)
            model(torch.rand(4, 16)).square().sum().backward()
            step = manager.current_step()
            inner.step()
            if rounds._local_step == 0:
                line = {
                    "event": "sync",
                    "first": not begun,
                    "step": manager.current_step(),
                    "committed": manager.current_step() > step,
                    "round": [rounds._sync_every, getattr(rounds, "_fragment_sync_delay", 0)],
                    "weights": checksum(model, rounds),
                }
                begun += 1
                journal.write(json.dumps(line) + "\n")
            if not loom.step():
                return


def checksum(model, rounds):
    """Return one number of all weights that the groups share after a sync."""
    parts = getattr(rounds, "_fragments", None)
    shared = model.parameters()
    if parts is not None:
        shared = [weights for part in parts for weights in part.original_parameters.values()]
    return zlib.crc32(b"".join(weights.detach().numpy().tobytes() for weights in shared))


if __name__ == "__main__":
    main()
