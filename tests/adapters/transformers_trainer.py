"""The attached example of transformers for the tests; a journal has a line for each step."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from tests.attached_scripts.train_transformers import Sentences
from torchloom_threadlet.adapters.transformers import TorchLoomCallback, newest_checkpoint


class Journal(TrainerCallback):
    """Writes each step before any other callback acts on it."""

    def __init__(self, folder, step_s):
        rank = os.environ.get("RANK", "0")
        self._file, self._step_s = (folder / f"{rank}.jsonl").open("a", buffering=1), step_s
        self.losses, self.samples = [], 0

    def on_step_end(self, args, state, control, model=None, optimizer=None, **parts):
        time.sleep(self._step_s)
        weights = sum(float(one.detach().double().sum()) for one in model.parameters())
        line = {
            "event": "step",
            "step": state.global_step,
            "losses": self.losses,
            "weights": weights.hex(),
            "lr": optimizer.param_groups[0]["lr"],
            "clip": args.max_grad_norm,
            "accumulate": args.gradient_accumulation_steps,
            "samples": self.samples,
        }
        self.losses = []
        self._file.write(json.dumps(line) + "\n")


class WritingTrainer(Trainer):
    """Keeps the loss of each batch for the journal."""

    journal: Journal

    def training_step(self, model, inputs, *rest):
        self.journal.samples = len(inputs["input_ids"])
        loss = super().training_step(model, inputs, *rest)
        self.journal.losses.append(float(loss).hex())
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--plain", action="store_true", help="without the callback")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(7)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    output = options.journal / "checkpoints"
    arguments = TrainingArguments(
        str(output),
        per_device_train_batch_size=8,
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=options.every,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    journal = Journal(options.journal, options.step_s)
    trainer = WritingTrainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sentences(),
        callbacks=[journal] if options.plain else [journal, TorchLoomCallback()],
    )
    trainer.journal = journal
    trainer.train(resume_from_checkpoint=newest_checkpoint(output))


if __name__ == "__main__":
    main()
