"""torchtitan's debug model for the tests; a journal has a line for each optimizer step."""

import argparse
import json
import os
import random
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import tests.adapters.titan_cpu  # noqa: F401 - before torchtitan

# isort: split
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.train import main
from torchtitan.trainer import Trainer

WORDS = [f"w{number}" for number in range(200)]


class Journal:
    """Writes each step of a trainer before its boundary."""

    losses: list

    def forward_backward_step(self, **named):
        self.used = {
            "lr": next(iter(self.optimizers)).param_groups[0]["lr"],
            "clip": self.config.training.max_norm,
            "accumulate": self.gradient_accumulation_steps,
            "gc": self.gc_handler.gc_freq,
        }
        loss = super().forward_backward_step(**named)
        self.losses.append(float(loss.detach()).hex())
        return loss

    def train_step(self, data_iterator):
        self.losses = []
        super().train_step(data_iterator)
        time.sleep(float(os.environ.get("STEP_S", "0")))
        line = {"event": "step", "step": self.step, "losses": self.losses}
        line |= self.used | self.written()
        path = Path(os.environ["JOURNAL"]) / f"{dist.get_rank()}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def written(self):
        """Return what else to write of a step."""
        return {}


class JournalTrainer(Journal, Trainer):
    """torchtitan's own trainer."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass


def sentences(path):
    rng = random.Random(5)
    return Dataset.from_dict({"text": [" ".join(rng.choices(WORDS, k=90)) for _ in range(400)]})


def debug():
    return reduced(llama3_debugmodel(), JournalTrainer)


def reduced(base, trainer):
    """Return a debug configuration as one of a test's trainer, with two layers and our data."""
    DATASETS["c4_test"] = DatasetConfig(
        path="", loader=sentences, sample_processor=lambda one: one["text"]
    )
    config = trainer.Config(**{one.name: getattr(base, one.name) for one in fields(base)})
    config.hf_assets_path = str(Path(os.environ["JOURNAL"]) / "tokenizer")
    config.dump_folder = os.environ["JOURNAL"]
    config.training.seq_len, config.training.local_batch_size = 32, 2
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable, config.debug.seed = True, 7
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    return config


def write_tokenizer(folder):
    folder.mkdir(exist_ok=True)
    ids = {word: number for number, word in enumerate(["[UNK]", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    part = folder / f"{os.getpid()}.json"
    tokenizer.save(str(part))
    part.rename(folder / "tokenizer.json")
    part.write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    part.rename(folder / "tokenizer_config.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1000, help="steps between two checkpoints")
    parser.add_argument("--plain", action="store_true", help="not attached")
    options = parser.parse_args()
    os.environ |= {"JOURNAL": str(options.journal), "STEP_S": str(options.step_s)}
    write_tokenizer(options.journal / "tokenizer")
    module = ["--module", "torchloom_threadlet.adapters.torchtitan"]
    module += ["--config", "tests.adapters.titan_trainer.debug"]
    if options.plain:
        module = ["--module", "tests.adapters.titan_trainer", "--config", "debug"]
    sys.argv = ["train.py", *module, "--training.steps", str(options.steps)]
    sys.argv += ["--lr_scheduler.total_steps", "1000", "--checkpoint.interval", str(options.every)]
    main()
