"""A worker of the small program, and of a rendezvous, in a process of its own."""

import os
import time

import torch

from tests.pipeline.programs import batch, program
from torchloom_threadlet.pipeline import attach


def attached(worker, address, join=None, options=None, **changes):
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TORCHLOOM_HEARTBEAT_S": "0.2"}
    torch.set_num_threads(1)
    what = program(**changes)
    names = ("layers", "loss", "optimizer", "scheduler", "replicas", "micro_batches", "seed")
    return attach(
        rendezvous=address,
        worker=worker,
        join=join,
        **{name: getattr(what, name) for name in names},
        **(options or {}),
    )


def main(worker, address, steps, folder, step_s=0.0, **more):
    """Train; write loss and learning rate after each step, and at the end the weights."""
    pipeline = attached(worker, address, **more)
    with open(f"{folder}/{worker}.losses", "w", buffering=1) as losses, pipeline:
        while pipeline.steps < steps:
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica))
            if loss is None:
                return
            rates = {each.optimizer.param_groups[0]["lr"] for each in pipeline.layers.values()}
            losses.write(f"{pipeline.steps} {loss!r} {max(rates, default=None)}\n")
            time.sleep(step_s)
        weights = {number: layer.weights for number, layer in pipeline.layers.items()}
        torch.save(weights, f"{folder}/{worker}.pt")
