"""The attached example of DeepSpeed for the tests; a journal has a line for each micro-batch."""

import argparse
import json
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from tests.attached_scripts.train_deepspeed import classifier, config, data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--plain", action="store_true", help="not attached")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    deepspeed.init_distributed(dist_backend="gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    model, loader, loom = classifier(), data(rank, count), None
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(options.stage)
    )
    if not options.plain:
        from torchloom_threadlet.adapters.deepspeed import attach, resume

        loom = attach(engine, options.journal / "checkpoints", loader=loader)
        resume(loom)
    journal = (options.journal / f"{rank}.jsonl").open("a", buffering=1)
    losses = []
    while engine.global_steps < options.steps:
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            losses.append(loss.item().hex())
            if engine.is_gradient_accumulation_boundary():
                time.sleep(options.step_s)
                line = {
                    "event": "step",
                    "step": engine.global_steps + 1,
                    "losses": losses,
                    "lr": engine.get_lr()[0],
                    "clip": getattr(engine.optimizer, "clip_grad", engine.gradient_clipping()),
                }
                losses = []
                journal.write(json.dumps(line) + "\n")
            before = engine.global_steps
            if engine.step() is False:
                return
            is_over = engine.global_steps >= options.steps
            is_due = engine.global_steps != before and engine.global_steps % options.every == 0
            if loom is not None and is_due and not is_over:
                loom.adapter.save_now()
            if is_over:
                break


if __name__ == "__main__":
    main()
