"""The trainer: trl's GRPO on completions from the queue. It writes a JSON line a step."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from experiments.rlhf.task import COMPLETIONS, LENGTH, model, prompt, reward, tokenizer
from torchloom_threadlet.adapters.transformers import TorchLoomCallback
from torchloom_threadlet.rollouts.trl import QueuedRollouts

PROMPTS = 2
"""Prompts of a step."""


class StepLog(TrainerCallback):
    """A line a step: when it ended, and the mean reward of its completions."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def on_log(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Write the line."""
        if "reward" in (logs := parts["logs"]):
            line = {"t": time.time(), "step": state.global_step, "reward": float(logs["reward"])}
            self._file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log", type=Path, default=Path("steps.jsonl"))
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def color_reward(completions: list[str], asked: list[str], **_: Any) -> list[float]:
        return [reward(*each) for each in zip(asked, completions, strict=True)]

    rollouts = QueuedRollouts(max_staleness=4)  # torchLoom 1
    trainer = GRPOTrainer(
        model=model(options.seed),
        reward_funcs=color_reward,
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [prompt(at) for at in range(64)]}),
        rollout_func=rollouts,  # torchLoom 2
        callbacks=[rollouts, TorchLoomCallback(), StepLog(options.log)],  # torchLoom 3
        args=GRPOConfig(
            output_dir=str(options.log.parent / "trl"),
            max_steps=options.steps,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            per_device_train_batch_size=PROMPTS * COMPLETIONS,
            num_generations=COMPLETIONS,
            max_completion_length=LENGTH,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=options.seed,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
