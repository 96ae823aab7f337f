"""A worker that trains by each of several assignments, and writes its layers' weights."""

import os

import torch
import torch.distributed as dist

from tests.pipeline.programs import OTHERS, UNDISTURBED, batch, program
from torchloom_threadlet.pipeline.boundaries import boundaries, described
from torchloom_threadlet.pipeline.generation import Generation, vote
from torchloom_threadlet.pipeline.messages import Messages

STEPS = 3
CLIP_NORM = 0.5  # smaller than the norm of each step


def trained(assignment, worker, store):
    what, messages = program(), Messages()
    workers = assignment.workers
    dist.init_process_group(
        "gloo", store=store, rank=workers.index(worker), world_size=len(workers)
    )
    held = {number: what.layer(number) for number in assignment.layers_of(worker)}
    shapes = boundaries(what, described(batch(0, 0)[0], what.micro_batches, "batch"))
    generation = Generation(what, assignment, worker, held, shapes, messages)
    for step in range(STEPS):
        losses = generation.compute(step, lambda replica, step=step: batch(step, replica))
        generation.reduction.reduce()
        losses, norm, _ = generation.share(losses, ())
        generation.reduction.clip(norm, CLIP_NORM)
        vote(messages, step, 0)
        generation.commit()
    dist.barrier()  # the last message has arrived
    dist.destroy_process_group()
    return {layer.number: layer.weights for layer in held.values()}, (losses, norm)


def main(worker, port, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    for number, (name, assignment) in enumerate({"undisturbed": UNDISTURBED, **OTHERS}.items()):
        if worker in assignment.workers:
            found = trained(assignment, worker, dist.PrefixStore(str(number), store))
            torch.save(found, f"{folder}/{name}-{worker}.pt")
