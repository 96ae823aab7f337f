"""Measure the quality of each mode for a run that changes to it: no network, one process.

    python experiments/allreduce/quality.py [--seeds 3] [--before 300] [--stay 200] [--jobs 2]

The codecs sum the gradients of four ranks. A run trains in none for a while, and then stays in
another mode. The cost of the change itself counts: error feedback first delays a part of the
gradients. A mode's quality is the number of steps that none would have needed from there to the
loss at the end of the stay, over those of the stay. It prints the table and writes
``quality.json``, whose ``quality`` fits the option of ``[policies.allreduce_tuner]``.
"""

import argparse
import copy
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
from torch import nn

from experiments.allreduce.model import (
    POWERSGD_RANK,
    TOPK_SHARE,
    Text,
    Workload,
    build,
    give,
    gradient_of,
    optimizer_of,
    set_rate,
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
LEAST = 1e-3
"""The smallest value that the policy accepts."""


@dataclass(frozen=True)
class Curve:
    """One training: the loss at each evaluated step."""

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
    """Return the losses without their noise: the closest curve that never rises."""
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


@dataclass
class Learner:
    """A partly trained model, and the loss so far."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    curve: Curve

    @classmethod
    def begin(cls, seed: int, workload: Workload) -> "Learner":
        """Return an untrained one."""
        model = build(workload, Text(workload), seed)
        return cls(model, optimizer_of(workload, model.parameters()), Curve("none", seed, [], []))

    def changed_to(self, mode: str) -> "Learner":
        """Return a copy that continues in another mode."""
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        curve = self.curve
        return Learner(model, optimizer, Curve(mode, curve.seed, [*curve.steps], [*curve.loss]))


def train(
    learner: Learner, steps: int, workload: Workload, topk_share: float, powersgd_rank: int
) -> Learner:
    """Train for a number of steps in the learner's mode, on the same batches as every other."""
    torch.set_num_threads(1)
    text, curve = Text(workload), learner.curve
    parameters = list(learner.model.parameters())
    codec = make_codecs(topk_share, powersgd_rank, parameters).get(curve.mode)
    tried, memories = text.tried(), [Memory()] * RANKS
    begun = curve.steps[-1] if curve.steps else 0
    for step in range(begun, begun + steps + 1):
        if step % EVERY == 0 and step not in curve.steps:
            with torch.no_grad():
                curve.steps.append(step)
                curve.loss.append(learner.model(tried).item())
        if step == begun + steps:
            break
        batches = (text.batch(curve.seed, step, rank) for rank in range(RANKS))
        gradients = [gradient_of(learner.model(batch), parameters) for batch in batches]
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
        give(parameters, total / RANKS)
        set_rate(learner.optimizer, workload, step)
        learner.optimizer.step()
    return learner


@dataclass(frozen=True)
class Quality:
    """One mode over all seeds: the mean, and half its 95 % interval; nan of one seed."""

    mode: str
    quality: float
    half: float
    by_seed: list[float]


def judge(curves: Sequence[Curve], before: int) -> list[Quality]:
    """Return each mode's quality, from ``LEAST`` to 1, in a stay that begins after ``before``."""
    alone = {curve.seed: curve for curve in curves if curve.mode == "none"}
    found: dict[str, list[float]] = {}
    for curve in curves:
        stay = curve.steps[-1] - before
        ended = falling(curve.loss[-stay // EVERY :])[-1]
        needed = alone[curve.seed].steps_to(ended) - before
        worth = 1.0 if curve.mode == "none" else min(max(needed / stay, LEAST), 1.0)
        found.setdefault(curve.mode, []).append(worth)
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
    parser.add_argument("--before", type=int, default=300, help="steps in none")
    parser.add_argument("--stay", type=int, default=200, help="steps in the mode")
    parser.add_argument("--jobs", type=at_least(1), default=2)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--topk-share", type=float, default=TOPK_SHARE)
    parser.add_argument("--powersgd-rank", type=int, default=POWERSGD_RANK)
    parser.add_argument("--out", type=Path, default=HERE / "quality.json")
    add_workload(parser)
    args = parser.parse_args(argv)
    for option in ("before", "stay"):
        number = getattr(args, option)
        if number < EVERY or number % EVERY:
            parser.error(f"--{option}: need a multiple of {EVERY}, was {number}")
    for mode in args.modes.split(","):
        if mode not in MODES:
            parser.error(f"--modes: need {', '.join(MODES)}, was {mode}")
    workload = workload_of(args)
    options = workload, args.topk_share, args.powersgd_rank

    console, seeds = Console(), range(1, args.seeds + 1)
    modes = [mode for mode in dict.fromkeys(args.modes.split(",")) if mode != "none"]
    side_by_side = Parallel(args.jobs, return_as="generator")
    begun = [Learner.begin(seed, workload) for seed in seeds]
    learnt = list(side_by_side(delayed(train)(one, args.before, *options) for one in begun))
    ended = side_by_side(
        delayed(train)(one.changed_to(mode), args.stay, *options)
        for one in learnt
        for mode in ("none", *modes)
    )
    curves = []
    for one in ended:
        curves.append(one.curve)
        console.print(f"{one.curve.mode}, seed {one.curve.seed}: {one.curve.loss[-1]:.4f}")

    rows = judge(curves, args.before)
    table = Table("mode", "quality (95 %)", "loss at the end", title=f"{args.stay} steps")
    for row in rows:
        last = statistics.fmean(c.end() for c in curves if c.mode == row.mode)
        table.add_row(row.mode, f"{row.quality:.3f} ± {row.half:.3f}", f"{last:.3f}")
    console.print(table)
    written = {
        "workload": asdict(workload),
        "topk_share": args.topk_share,
        "powersgd_rank": args.powersgd_rank,
        "before": args.before,
        "stay": args.stay,
        "seeds": list(seeds),
        "quality": {row.mode: round(row.quality, 3) for row in rows},
        "rows": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in curves],
    }
    args.out.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
