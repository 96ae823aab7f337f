"""In the manner of transformers' examples: a small GPT-2, trained from scratch under torchrun."""

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Sentences(Dataset):
    """Sentences of random words, each word once or twice."""

    def __init__(self, count=200, length=16, vocabulary=64):
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(vocabulary, (count, length // 2), generator=generator)
        self.sentences = words.repeat_interleave(2, 1)

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, place):
        return {"input_ids": self.sentences[place], "labels": self.sentences[place]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
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
    arguments = TrainingArguments(
        options.output,
        per_device_train_batch_size=8,
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=10,
        save_total_limit=3,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sentences(),
    )
    last = get_last_checkpoint(options.output) if os.path.isdir(options.output) else None
    trainer.train(resume_from_checkpoint=last)
    if trainer.is_world_process_zero():
        print("loss", *(f"{one['loss']:.6f}" for one in trainer.state.log_history if "loss" in one))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
