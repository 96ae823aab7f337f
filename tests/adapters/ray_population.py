"""A population of two for the tests; prints each result as a line of JSON.

Arguments: how it trains, and a file for which its members wait.
"""

import json
import os
import sys
import time

import ray
import torch
from ray import tune

from torchloom_threadlet.adapters.ray import Member, TorchLoomPBT


def train(config):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(config["member"]))
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=0.5)
    member = Member(model=model, optimizer=optimizer)
    while not os.path.exists(config["awaits"]):
        time.sleep(0.05)
    goes_on = True
    while goes_on:
        if config["fails"] and model.weight.item() < config["member"]:
            raise ValueError("it has taken over the other's weights")
        lr = optimizer.param_groups[0]["lr"]
        goes_on = member.report({"loss": model.weight.item(), "lr": lr, "process": os.getpid()})


class Printer(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        names = ("training_iteration", "loss", "lr", "process")
        line = {name: result[name] for name in names} | {"in": result["config"]["lr"]}
        sys.stdout.write(json.dumps(line | {"trial": trials.index(trial)}) + "\n")
        sys.stdout.flush()


class Stopper(tune.Stopper):
    """Ends the population once both train and report the better one's loss."""

    def __init__(self):
        self._losses = {}

    def __call__(self, trial_id, result):
        self._losses[trial_id] = result["loss"]
        return False

    def stop_all(self):
        return len(self._losses) == 2 and set(self._losses.values()) == {1.0}


def main():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    scheduler = TorchLoomPBT(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.25, 0.125], "momentum": lambda: 2.0},  # which is refused
        resample_probability=1,
        quantile_fraction=0.5,
        synch=sys.argv[1] == "synch",
    )
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            "member": tune.grid_search([1, 2]),
            "lr": 0.5,
            "fails": sys.argv[1] == "failing",
            "awaits": sys.argv[2],
        },
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(
            storage_path=os.getcwd(),
            stop=Stopper(),
            failure_config=tune.FailureConfig(fail_fast=True),
            callbacks=[Printer()],
            verbose=0,
        ),
    ).fit()


if __name__ == "__main__":
    main()
