"""How much progress a step makes in each mode, relative to none: no network, one process.

    python experiments/allreduce/quality.py [--seeds 3] [--steps 600] [--jobs 2]

Four ranks' gradients are summed by the codecs themselves. A mode's quality is the steps that none
needs to a fixed loss over those that it needs, the loss being what the slowest mode reaches at its
end in that seed. It prints the table and writes ``quality.json``, whose ``quality`` is what
``[policies.allreduce_tuner]`` takes.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student
from sklearn.isotonic import IsotonicRegression
from torch import Tensor, nn

from experiments.allreduce.model import (
    POWERSGD_RANK,
    TOPK_SHARE,
    Text,
    Workload,
    build,
    learning_rate,
    optimizer_of,
)
from experiments.allreduce.schedule import at_least
from experiments.allreduce.trainer import add_workload, workload_of
from torchloom_threadlet.compression import MODES
from torchloom_threadlet.compression.codecs import Memory
from torchloom_threadlet.compression.collectives import Peers, reduce_together
from torchloom_threadlet.compression.modes import make_codecs

HERE = Path(__file__).parent
RANKS = 4
EVERY = 10


@dataclass(frozen=True)
class Curve:
    """One training: the loss at each step at which it was tried."""

    mode: str
    seed: int
    steps: list[int]
    loss: list[float]

    def end(self) -> float:
        """Return the loss at the end."""
        return falling(self.loss)[-1]

    def steps_to(self, loss: float) -> float:
        """Return at which step a loss is reached, between tries; inf if it is not."""
        return first_at(self.steps, self.loss, loss)


def falling(losses: Sequence[float]) -> list[float]:
    """Return the losses without their noise: of all that never rise what is nearest to them."""
    found = IsotonicRegression(increasing=False).fit_transform(range(len(losses)), losses)
    return [float(loss) for loss in found]


def first_at(places: Sequence[float], losses: Sequence[float], loss: float) -> float:
    """Return where a loss is reached, steps or seconds, between tries; inf if it is not."""
    curve = falling(losses)
    for n, now in enumerate(curve):
        if now <= loss:
            if n == 0 or curve[n - 1] == now:
                return float(places[n])
            share = (curve[n - 1] - loss) / (curve[n - 1] - now)
            return places[n - 1] + share * (places[n] - places[n - 1])
    return math.inf


def train(
    mode: str, seed: int, steps: int, workload: Workload, topk_share: float, powersgd_rank: int
) -> Curve:
    """Train for ``steps``, from the same weights and on the same batches in every mode."""
    torch.set_num_threads(1)
    text = Text(workload)
    model = build(workload, text, seed)
    parameters = list(model.parameters())
    optimizer = optimizer_of(workload, parameters)
    codec = make_codecs(topk_share, powersgd_rank, parameters).get(mode)
    tried, memories = text.tried(), [Memory()] * RANKS
    curve = Curve(mode, seed, [], [])
    for step in range(steps + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                curve.steps.append(step)
                curve.loss.append(model(tried).item())
        gradients = []
        for rank in range(RANKS):
            grads = torch.autograd.grad(model(text.batch(seed, step, rank)), parameters)
            gradients.append(torch.cat([grad.reshape(-1) for grad in grads]))
        if codec is None:
            total = torch.stack(gradients).sum(0)
        else:
            ended = reduce_together(
                [
                    codec.reduce(gradient, memory, Peers(rank, RANKS))
                    for rank, (gradient, memory) in enumerate(zip(gradients, memories, strict=True))
                ]
            )
            total, memories = ended[0][0], [memory for _, memory in ended]
        _give(parameters, total / RANKS)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(workload, step)
        optimizer.step()
    return curve


def _give(parameters: Sequence[nn.Parameter], flat: Tensor) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = part.view(parameter.shape)


@dataclass(frozen=True)
class Quality:
    """One mode over all seeds: the mean, and half its 95 % interval; nan of one seed."""

    mode: str
    quality: float
    half: float
    by_seed: list[float]


def judge(curves: Sequence[Curve]) -> list[Quality]:
    """Return each mode's quality, at the loss that the slowest mode of a seed reaches."""
    by_seed: dict[int, dict[str, Curve]] = {}
    for curve in curves:
        by_seed.setdefault(curve.seed, {})[curve.mode] = curve
    found: dict[str, list[float]] = {}
    for trained in by_seed.values():
        loss = max(curve.end() for curve in trained.values())
        steps = trained["none"].steps_to(loss)
        for mode, curve in trained.items():
            found.setdefault(mode, []).append(min(1.0, steps / curve.steps_to(loss)))
    return [
        Quality(mode, statistics.fmean(each), half_interval(each), each)
        for mode, each in found.items()
    ]


def half_interval(values: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean by Student's t; nan of one value."""
    if len(values) < 2:
        return math.nan
    error = statistics.stdev(values) / len(values) ** 0.5
    return float(student.ppf(0.975, len(values) - 1)) * error


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--steps", type=at_least(EVERY), default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--topk-share", type=float, default=TOPK_SHARE)
    parser.add_argument("--powersgd-rank", type=int, default=POWERSGD_RANK)
    parser.add_argument("--out", type=Path, default=HERE / "quality.json")
    add_workload(parser)
    asked = parser.parse_args(argv)
    workload = workload_of(asked)

    seeds = range(1, asked.seeds + 1)
    modes = dict.fromkeys(("none", *asked.modes.split(",")))
    trials = [(mode, seed) for seed in seeds for mode in modes]
    ended = Parallel(asked.jobs, return_as="generator")(
        delayed(train)(mode, seed, asked.steps, workload, asked.topk_share, asked.powersgd_rank)
        for mode, seed in trials
    )
    curves = []
    for curve in ended:
        curves.append(curve)
        print(f"{curve.mode}, seed {curve.seed}: {curve.end():.4f}", flush=True)

    rows = judge(curves)
    table = Table("mode", "quality (95 %)", "loss at the end", title=f"{asked.steps} steps")
    for row in rows:
        last = statistics.fmean(c.end() for c in curves if c.mode == row.mode)
        table.add_row(row.mode, f"{row.quality:.3f} ± {row.half:.3f}", f"{last:.3f}")
    Console().print(table)
    written = {
        "workload": asdict(workload),
        "topk_share": asked.topk_share,
        "powersgd_rank": asked.powersgd_rank,
        "steps": asked.steps,
        "seeds": list(seeds),
        "quality": {row.mode: round(row.quality, 4) for row in rows},
        "rows": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in curves],
    }
    asked.out.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
