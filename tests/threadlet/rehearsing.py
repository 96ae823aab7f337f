"""A script that offers its standby for previews, and the results of one."""

import copy
import math

import msgspec
import torch
from torch import nn

from tests.pieces import preview_note, take
from torchloom_core.live.trajectory.preview import Preview as Shown
from torchloom_core.wire.operations import Rehearse
from torchloom_core.wire.preview import Curve, Judgement, Piece, Setup
from torchloom_threadlet.preview import Preview

ALWAYS = 3600.0
LR = 0.1


class Script:
    """A small network with dropout, during a run, at the run's present rate ``lr``."""

    def __init__(self, seed=0, lr=LR, warm=40):
        torch.manual_seed(seed)
        self.inputs = torch.randn(512, 6)
        self.targets = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))(
            self.inputs
        ).argmax(1)
        self.model, self.optimizer = self._made()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for _ in range(warm):
            self.step()
        self.newest = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.model, self.optimizer = self._made()  # the standby's own, from the start
        self.steps, self.seen = 0, []

    def _made(self):
        layers = [nn.Linear(6, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 3)]
        model = nn.Sequential(*layers)
        return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

    steps = 0

    def step(self):
        """Take one step on a batch that is drawn at random."""
        self.steps += 1
        rows = torch.randint(0, len(self.inputs), (32,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs[rows]), self.targets[rows])
        loss.backward()
        self.optimizer.step()
        return loss

    def load(self):
        """Load the run's newest state."""
        model, optimizer = copy.deepcopy(self.newest)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def preview(self, step=None, load=None, **more):
        """Return the standby's preview."""
        return Preview(self.model, self.optimizer, step or self.step, load or self.load, **more)


class Recorded:
    """The results of a preview, piece by piece, as they come over the wire."""

    def __init__(self, preview, seconds=ALWAYS, should_stop=lambda: False, **trial):
        self.pieces, self.progress = [], []
        self.outcome = preview.run(Rehearse(**trial), "v0-0", seconds, self._take, should_stop)

    def _take(self, points, of, piece):
        self.progress.append((points, of))
        self.pieces.append(msgspec.json.decode(msgspec.json.encode(piece), type=Piece))

    def of(self, kind):
        """Return the pieces of a kind, in order."""
        return [piece for piece in self.pieces if isinstance(piece, kind)]

    def curve(self, repeat, arm):
        """Return the losses of an arm, step by step."""
        losses = []
        for piece in self.of(Curve):
            if (piece.repeat, piece.arm) == (repeat, arm):
                assert piece.first == len(losses)
                losses += piece.losses
        return losses

    @property
    def setup(self):
        """Return the setup."""
        (setup,) = self.of(Setup)
        return setup

    @property
    def judged(self):
        """Return the last judgement."""
        return self.of(Judgement)[-1]

    @property
    def shown(self):
        """Return the preview's view for people, line by line."""
        preview = Shown()
        for piece in self.pieces:
            take(preview, preview_note(piece))
        return dict(preview.words())

    @property
    def end(self):
        """Return the last piece."""
        return self.pieces[-1]


def finite(losses):
    """Return whether all losses are numbers."""
    return all(loss is not None and math.isfinite(loss) for loss in losses)
