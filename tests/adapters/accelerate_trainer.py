"""The attached example of accelerate for the tests; a journal has a line for each step."""

import argparse
import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn

from tests.attached_scripts.train_accelerate import parts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--plain", action="store_true", help="not attached")
    parser.add_argument("--plain-loader", action="store_true", help="one that cannot resume")
    parser.add_argument("--clips-not", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=not options.plain_loader, use_seedable_sampler=True
        ),
    )
    set_seed(7)
    step, going, losses, loom = 0, True, [], None
    if not options.plain:
        from torchloom_threadlet.adapters.accelerate import attach, resume

        loom = attach(accelerator, options.journal / "checkpoints")
    model, optimizer, scheduler, loader = accelerator.prepare(*parts())
    if loom is not None:
        loom.manage(optimizer, scheduler)
        step = resume(loom)
    journal = (options.journal / f"{accelerator.process_index}.jsonl").open("a", buffering=1)
    while going and step < options.steps:
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                losses.append(loss.item().hex())
                accelerator.backward(loss)
                if accelerator.sync_gradients and not options.clips_not:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            time.sleep(options.step_s)
            weights = sum(float(one.detach().double().sum()) for one in model.parameters())
            line = {
                "event": "step",
                "step": step,
                "losses": losses,
                "weights": weights.hex(),
                "lr": optimizer.param_groups[0]["lr"],
                "accumulate": accelerator.gradient_accumulation_steps,
            }
            losses = []
            journal.write(json.dumps(line) + "\n")
            if loom is not None:
                going = loom.step(step, loss=loss)
                if going and step % options.every == 0:
                    loom.adapter.save_now()
            if not going or step >= options.steps:
                break
    if loom is not None:
        loom.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
