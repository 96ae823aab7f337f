"""One of two ranks that reports DTensors as metrics, and prints the sent rows and the log."""

import json
import logging
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from torchloom_threadlet.cleaning import fields
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer


def main():
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    rank, meeting = int(sys.argv[1]), f"file://{sys.argv[2]}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    both, alone = (init_device_mesh("cpu", shape) for shape in ((2,), (2, 1)))

    def placed(value, *placements, mesh=both):
        return DTensor.from_local(torch.tensor(value), mesh, placements)

    loss = placed(1.0 + rank, Partial("avg"))
    metrics = {
        "loss": loss,
        "shard": placed([1.0 + rank], Shard(0)),
        "whole": loss.full_tensor(),
        "same": placed(5.0, Replicate()),
        "one_rank": placed(7.0, Replicate(), Partial(), mesh=alone),
    }
    samples = SampleBuffer()
    samples.waiting += [(step, step, dict(metrics)) for step in (1, 2)]
    rows = [row for _, row in samples.take(0)]
    note = fields({"loss": loss})
    sys.stdout.write(json.dumps({"row": rows[0], "note": note["loss"]}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
