"""Measure the quality of a step under LocalSGD and DiLoCo by the sync interval: no network.

    python experiments/allreduce/sync_quality.py [--seeds 3] [--every 4,16,64] [--jobs 2]

Four ranks learn as one for a while, with their gradients summed at every step, and then each alone
from one synchronisation to the next. The quality is as in ``quality.py``: the steps that they would
have needed together to the loss at the end, over those that they made. ``sync_cost`` of
``[policies.allreduce_tuner]`` is the power of ``every`` by which it falls: the slope of their
logarithms, one a seed. It prints both and writes ``sync-quality.json``.
"""

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from experiments.allreduce.model import POWERSGD_RANK, TOPK_SHARE, Text, Workload, set_rate
from experiments.allreduce.quality import (
    EVERY,
    RANKS,
    Curve,
    Learner,
    Quality,
    half_interval,
    judge,
    train,
)
from experiments.allreduce.schedule import at_least
from experiments.allreduce.trainer import add_workload, workload_of

HERE = Path(__file__).parent
LOCAL_SGD, DILOCO = "local_sgd", "diloco"
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Of the outer optimizer, SGD with Nesterov's momentum, as DiLoCo has it (arXiv 2311.08105)."""


@dataclass(frozen=True)
class SyncCost:
    """The power of ``every`` by which progress falls, and half its 95 % interval over seeds."""

    algorithm: str
    sync_cost: float
    half: float
    by_seed: list[float]


def train_apart(
    learner: Learner, algorithm: str, every: int, steps: int, workload: Workload
) -> Curve:
    """Train for a number of steps on the batches of every other run, with a sync per ``every``."""
    torch.set_num_threads(1)
    text, tried = Text(workload), Text(workload).tried()
    shared = copy.deepcopy(learner.model)
    ranks = [copy.deepcopy((learner.model, learner.optimizer)) for _ in range(RANKS)]
    outer = torch.optim.SGD(shared.parameters(), OUTER_RATE, OUTER_MOMENTUM, nesterov=True)
    begun = learner.curve.steps[-1]
    curve = Curve(_name(algorithm, every), learner.curve.seed, [*learner.curve.steps],
                  [*learner.curve.loss])  # fmt: skip
    for step in range(begun, begun + steps):
        for rank, (model, optimizer) in enumerate(ranks):
            set_rate(optimizer, workload, step)
            optimizer.zero_grad()
            model(text.batch(curve.seed, step, rank)).backward()
            optimizer.step()
        made = step + 1
        if (made - begun) % every == 0:
            _synchronise(shared, [model for model, _ in ranks], outer, algorithm)
        if made % EVERY == 0:
            with torch.no_grad():
                curve.steps.append(made)
                curve.loss.append(shared(tried).item())
    return curve


def _synchronise(
    shared: nn.Module, models: Sequence[nn.Module], outer: torch.optim.Optimizer, algorithm: str
) -> None:
    """Merge the ranks' progress into the shared weights."""
    with torch.no_grad():
        for weights, *each in zip(*(m.parameters() for m in (shared, *models)), strict=True):
            mean = torch.stack([one.detach() for one in each]).mean(0)
            if algorithm == DILOCO:
                weights.grad = weights - mean
            else:
                weights.copy_(mean)
        if algorithm == DILOCO:
            outer.step()
        state: Mapping[str, Tensor] = shared.state_dict()
        for model in models:
            model.load_state_dict(state)


def _name(algorithm: str, every: int) -> str:
    return f"{algorithm} {every}"


def sync_costs(rows: Sequence[Quality], every: Sequence[int]) -> Iterator[SyncCost]:
    """Yield for each algorithm the power by which its quality falls with ``every``."""
    by_name = {row.mode: row.by_seed for row in rows}
    for algorithm in (LOCAL_SGD, DILOCO):
        each = np.log([by_name[_name(algorithm, steps)] for steps in every])
        costs = [-float(slope) for slope in np.polyfit(np.log(every), each, 1)[0]]
        yield SyncCost(algorithm, statistics.fmean(costs), half_interval(costs), costs)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--before", type=int, default=300, help="steps together")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of the longest one")
    parser.add_argument("--every", default="4,16,64", help="steps from one sync to the next")
    parser.add_argument("--jobs", type=at_least(1), default=2)
    parser.add_argument("--out", type=Path, default=HERE / "sync-quality.json")
    add_workload(parser)
    args = parser.parse_args(argv)
    try:
        every = [int(each) for each in args.every.split(",")]
    except ValueError:
        parser.error(f"--every: need numbers of steps, was {args.every}")
    stay = args.rounds * max(every)
    if len(set(every)) < 2 or min(every) < 1 or any(stay % each for each in every):
        parser.error(f"--every: need two steps or more that go into {stay}, was {args.every}")
    for option, number in (("before", args.before), ("rounds", stay)):
        if number < EVERY or number % EVERY:
            parser.error(f"--{option}: need a multiple of {EVERY} steps, was {number}")
    workload = workload_of(args)

    console, seeds = Console(), range(1, args.seeds + 1)
    side_by_side = Parallel(args.jobs, return_as="generator")
    together = workload, TOPK_SHARE, POWERSGD_RANK
    begun = [Learner.begin(seed, workload) for seed in seeds]
    learnt = list(side_by_side(delayed(train)(one, args.before, *together) for one in begun))
    went_on = side_by_side(
        delayed(train)(one.changed_to("none"), stay, *together) for one in learnt
    )
    curves = [one.curve for one in went_on]
    apart = side_by_side(
        delayed(train_apart)(one, algorithm, steps, stay, workload)
        for algorithm in (LOCAL_SGD, DILOCO)
        for steps in every
        for one in learnt
    )
    for curve in apart:
        curves.append(curve)
        console.print(f"{curve.mode}, seed {curve.seed}: {curve.loss[-1]:.4f}")

    rows = judge(curves, args.before)
    table = Table("synchronised after", "quality (95 %)", title=f"{stay} steps")
    for row in rows[1:]:
        table.add_row(row.mode, f"{row.quality:.3f} ± {row.half:.3f}")
    console.print(table)
    costs = list(sync_costs(rows, every))
    for cost in costs:
        console.print(f"{cost.algorithm}: sync_cost {cost.sync_cost:.3f} ± {cost.half:.3f}")
    written = {
        "workload": asdict(workload),
        "before": args.before,
        "stay": stay,
        "every": every,
        "seeds": list(seeds),
        "sync_cost": {cost.algorithm: round(cost.sync_cost, 3) for cost in costs},
        "costs": [asdict(cost) for cost in costs],
        "rows": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in curves],
    }
    args.out.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
