"""A small DDP job of Monarch: a controller, and a mesh of actors that it starts again."""

import argparse
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from monarch.actor import Actor, ActorError, current_rank, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer(Actor):
    def __init__(self, folder):
        self.rank = current_rank().rank
        self.path = Path(folder) / "state.pt"

    @endpoint
    def train(self, steps, save_every):
        dist.init_process_group("gloo")
        torch.manual_seed(7)
        model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        criterion = nn.CrossEntropyLoss()
        done = 0
        if self.path.exists():
            state = torch.load(self.path, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            done = state["step"]

        def save():
            if self.rank == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                new = self.path.with_suffix(".new")
                torch.save(states | {"step": done}, new)
                new.replace(self.path)

        loss = torch.tensor(0.0)
        while done < steps:
            torch.manual_seed(1_000_000 * self.rank + done)
            inputs, labels = torch.rand(4, 8), torch.randint(4, (4,))
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            done += 1
            if done % save_every == 0:
                save()
        dist.destroy_process_group()
        return loss.item()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=".")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=3)
    options = parser.parse_args()
    for start in range(options.restarts + 1):
        procs = this_host().spawn_procs(name=f"procs{start}", per_host={"gpus": 2})
        setup_torch_elastic_env(procs, "127.0.0.1", free_port())
        trainers = procs.spawn("trainer", Trainer, options.folder)
        try:
            losses = trainers.train.call(options.steps, options.save_every).get()
        except (ActorError, RuntimeError) as error:
            print(f"start {start} failed: {type(error).__name__}", flush=True)
        else:
            print("loss", losses.item(gpus=0), flush=True)
            break
        finally:
            procs.stop().get()


if __name__ == "__main__":
    main()
