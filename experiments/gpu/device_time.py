"""How accurate ``compute_s`` is: as the Weaver receives it, beside torch's profiler, same steps.

``python -m experiments.gpu.device_time cuda``; ``run.py`` calls this.
"""

import time
from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from experiments.bench.figure import Figure
from experiments.gpu.attached import attached
from experiments.gpu.section import Device, Measurement, Skipped, main
from experiments.gpu.training import Training

_STEP_S, _INPUT_S = 0.02, 0.005
_STEPS, _FEW_STEPS = 60, 10
_LIMIT = 1.05
_RANGE = "torchloom-step"


def measure(device: Device) -> list[Measurement]:
    """Measure one figure."""
    return [partial(accuracy, device)]


def accuracy(device: Device) -> Figure:
    """Train with pauses of the host between steps, as for input, under the profiler."""
    steps = device.sized(_STEPS, _FEW_STEPS)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * device.is_gpu
    with attached() as (loom, received):
        training = Training(device)
        training.last(_STEP_S, device)
        training.at_once()
        if device.is_gpu:  # waits are known with DDP, here of one rank
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
            training.model = DistributedDataParallel(training.model)
        loom.measure(training.model)
        loom.manage(training.optimizer)
        for _ in range(5):
            loom.step(loss=training.step())
        device.synchronize()
        mark = len(received.until("loss", 5))
        with profile(activities=activities) as profiler:
            for _ in range(steps):
                time.sleep(_INPUT_S)
                with record_function(_RANGE):
                    loss = training.step()
                own = {} if device.is_gpu else {"wait_s": _INPUT_S}
                loom.step(loss=loss, **own)
            device.synchronize()
        loom.step(loss=loss)  # the last of those steps can be read now
        received.until("loss", mark + steps)
        ours = received.values["compute_s"][-steps:]
    if not ours:
        raise Skipped("this version reports no compute_s of a step on this device")
    theirs = kernels_s(profiler, device) / steps
    ratio = median(ours) / theirs
    numbers = {
        "compute_ms": 1e3 * median(ours),
        "profiler_ms": 1e3 * theirs,
        "step_ms": 1e3 * median(received.values["step_time_s"][-steps:]),
        "steps": float(len(ours)),
    }
    what = "compute_s of a step / the time of its kernels by torch's profiler, the larger / smaller"
    return Figure("compute_s", what, _LIMIT, "at most", [max(ratio, 1 / ratio)], numbers)


def kernels_s(profiler: Any, device: Device) -> float:
    """Return the time in which at least one kernel ran, or the CPU was in a step, seconds."""
    events: Iterable[Any] = profiler.events()
    if device.is_gpu:
        kernels = [
            each
            for each in events
            if each.device_type.name == "CUDA" and not each.is_user_annotation
        ]
        spans = [each.time_range for each in kernels]
    else:
        spans = [each.time_range for each in events if each.name == _RANGE]
    total_us, until_us = 0.0, 0.0
    for span in sorted(spans, key=lambda each: each.start):
        total_us += max(0.0, span.end - max(span.start, until_us))
        until_us = max(until_us, span.end)
    return total_us / 1e6


if __name__ == "__main__":
    main(measure)
