"""A script whose standby offers previews, and logs each step."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from torchloom_threadlet import attach
from torchloom_threadlet.preview import Preview

NEWEST = Path("newest.pt")
RATE = 0.05
SAVED_AT = 1
HOLD_POLL_S = 0.02


class Script:
    """A model, its optimizer and data that are drawn at random."""

    def __init__(self):
        torch.manual_seed(0)
        self.inputs = torch.randn(256, 4)
        self.targets = (self.inputs @ torch.randn(4, 3)).argmax(1)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)

    def step(self):
        """Take one training step, and return its loss."""
        rows = torch.randint(0, 256, (32,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs[rows]), self.targets[rows])
        loss.backward()
        self.optimizer.step()
        return loss

    def save(self, path):
        """Save the run's state."""
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], path)

    def load(self, path=NEWEST):
        """Load the run's state, and return its step."""
        model, optimizer = torch.load(path, weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        return SAVED_AT

    def rate(self):
        """Return the rate relative to the initial one."""
        return self.optimizer.param_groups[0]["lr"] / RATE

    def set_rate(self, times):
        """Set the rate relative to the initial one."""
        self.optimizer.param_groups[0]["lr"] = RATE * times


def main():
    torch.set_num_threads(1)
    script, steps = Script(), Path(os.environ["TEST_JOURNAL"])

    def step():
        with steps.open("a") as journal:
            journal.write('{"event": "step"}\n')
        while Path(os.environ["TEST_HOLD"]).exists():
            time.sleep(HOLD_POLL_S)
        if "TEST_NOISE" in os.environ:
            torch.seed()
        return script.step()

    preview = Preview(script.model, script.optimizer, step, script.load)
    preview.knob("x", script.rate, script.set_rate, low=0.0, high=100.0)
    loom = attach(preview=preview)
    while loom.step():
        time.sleep(HOLD_POLL_S)


if __name__ == "__main__":
    main()
