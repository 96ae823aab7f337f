"""A member of the population: a small network on scikit-learn's digits, in two forms."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import tune
from torch import nn
from torch.nn import functional

from torchloom_threadlet.digits import digits

_BATCH = 64
_HELD_OUT = 400


class Training:
    """A network, its optimizer and how often it has reported; the data follow from the count."""

    def __init__(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(config["member"])
        inputs, labels = digits()
        self._held_out = inputs[-_HELD_OUT:], labels[-_HELD_OUT:]
        self._data = inputs[:-_HELD_OUT], labels[:-_HELD_OUT]
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), config["lr"], momentum=0.9)
        self.reports = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the count of reports."""
        return {"reports": self.reports}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after so many reports."""
        self.reports = state["reports"]

    def train(self, steps: int) -> dict[str, float]:
        """Train for so many steps; return the loss on the held-out digits, and the rate."""
        order = torch.Generator().manual_seed(self.reports)
        inputs, labels = self._data
        for _ in range(steps):
            rows = torch.randint(len(inputs), (_BATCH,), generator=order)
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(inputs[rows]), labels[rows]).backward()
            self.optimizer.step()
        self.reports += 1
        with torch.no_grad():
            inputs, labels = self._held_out
            loss = functional.cross_entropy(self.model(inputs), labels)
        return {"loss": float(loss), "rate": self.optimizer.param_groups[0]["lr"]}


def tune_member(config: dict[str, Any]) -> None:
    """Train as Tune's own population-based training wants it: with a checkpoint to start from."""
    training = Training(config)
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        training.load_state_dict(state["training"])
        for group in training.optimizer.param_groups:
            group["lr"] = config["lr"]
    while True:
        metrics = training.train(config["steps"])
        with tempfile.TemporaryDirectory() as folder:
            state = {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "training": training.state_dict(),
            }
            torch.save(state, Path(folder) / "state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def loom_member(config: dict[str, Any]) -> None:
    """Train as a member whose weights and rate are replaced while it runs."""
    from torchloom_threadlet.adapters.ray import Member

    training = Training(config)
    member = Member(model=training.model, optimizer=training.optimizer, training=training)
    while member.report(training.train(config["steps"])):
        pass
