"""A worker of the small program, and of a rendezvous, in a process of its own."""

import os

import torch

from tests.pipeline.programs import batch, program
from torchloom_threadlet.pipeline import attach


def attached(worker, address, **changes):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    what = program(**changes)
    names = ("layers", "loss", "optimizer", "scheduler", "replicas", "micro_batches", "seed")
    return attach(
        rendezvous=address, worker=worker, **{name: getattr(what, name) for name in names}
    )


def main(worker, address, steps, folder, disturb=None):
    """Train; write the losses, one a line, and at the end the weights."""
    pipeline = attached(worker, address)
    if disturb is not None:
        disturb(pipeline)
    with open(f"{folder}/{worker}.losses", "w", buffering=1) as losses, pipeline:
        while pipeline.steps < steps:
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica))
            if loss is None:
                return
            losses.write(f"{pipeline.steps} {loss!r}\n")
        weights = {number: layer.weights for number, layer in pipeline.layers.items()}
        torch.save(weights, f"{folder}/{worker}.pt")
