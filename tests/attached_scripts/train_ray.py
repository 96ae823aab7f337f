"""A small DDP job of Ray Train, shaped like Ray's own PyTorch example."""

import argparse
import json
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn, optim


def train_loop_per_worker(config):
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(7)
    model = prepare_model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = optim.AdamW(model.parameters(), config["lr"])
    criterion = nn.CrossEntropyLoss()
    done = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.module.load_state_dict(state["model"])
        done = state["step"]

    def save():
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.module.state_dict(), "step": done}
            torch.save(state, Path(folder) / "state.pt")
            saved = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"step": done}, checkpoint=saved)

    while done < config["steps"]:
        torch.manual_seed(1_000_000 * rank + done)
        inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        done += 1
        if done % config["save_every"] == 0:
            save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage", default="/tmp/ray_results")
    parser.add_argument("--config", type=json.loads, default={})
    options = parser.parse_args()
    defaults = {"lr": 1e-3, "steps": 1000, "save_every": 100}
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config=defaults | options.config,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="example",
            storage_path=options.storage,
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
