"""The standby that computes landscapes and previews: a model as large as the live rank's."""

import torch
from torch import nn

from experiments.undisturbed.live import BATCH, WIDTH
from torchloom_threadlet import attach
from torchloom_threadlet.landscape import Landscape
from torchloom_threadlet.preview import Preview


def main() -> None:
    """Stand by until the run is over."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(8 * BATCH, WIDTH)

    def loss(rows: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        return (model(inputs[rows]) - inputs[rows]).square().mean()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(torch.randint(len(inputs), (BATCH,)))
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value

    attach(
        landscape=Landscape(model, loss, lambda: None),
        preview=Preview(model, optimizer, step, lambda: None),
    )


if __name__ == "__main__":
    main()
