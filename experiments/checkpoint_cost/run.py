"""What a save costs the training, of four ways in turn in one process.

``python experiments/checkpoint_cost/run.py [--megabytes 150] [--saves 31] [--threads 1]``
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from experiments.checkpoint_cost.methods import (
    METHODS,
    OURS,
    SYNCED,
    THREADED,
    Method,
    State,
    begin_alone,
)

_QUIET_STEPS = 40
_LAYERS = 16
_RESAMPLES, SEED = 2000, 7
_CPU = torch.device("cpu")


def main() -> None:
    """Measure, print a table, and write ``--json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=150.0)
    parser.add_argument("--saves", type=int, default=31, help="of each, the first is dropped")
    parser.add_argument("--threads", type=int, default=1, help="torch's, of the training")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    begin_alone()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        found = measure(options.megabytes, options.saves, Path(folder))
    table = Table("method", "longest wait ms", "felt ms", "on file after ms", "first wait ms")
    for name, of in found.items():
        ranges = [_range(of[key]) for key in ("wait", "felt", "on_file")]
        table.add_row(name, *ranges, f"{of['first'][0]:.0f}")
    Console().print(table)
    print("longest wait, of that of torch.save + fsync:", _ratio(found, "wait", SYNCED))
    print("felt, of that of async_save in a thread:", _ratio(found, "felt", THREADED))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(
    megabytes: float,
    saves: int,
    folder: Path,
    compared: Mapping[str, Callable[[State, Path], Method]] = METHODS,
    device: torch.device = _CPU,
) -> dict[str, dict[str, list[float]]]:
    """Return, of each method, the milliseconds of each save."""
    width = int((megabytes * 1e6 / 12 / _LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(8, width, device=device)

    def train() -> float:
        began_s = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)  # no new memory: steps take about the same time
        model(data).square().mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    for _ in range(3):
        train()
    state = State(model, optimizer)
    methods = {name: make(state, folder) for name, make in compared.items()}
    found: dict[str, dict[str, list[float]]] = {
        name: {"wait": [], "felt": [], "on_file": [], "first": []} for name in methods
    }
    step = 0
    for number in range(saves):
        for name, method in methods.items():
            usual_s = statistics.mean(train() for _ in range(_QUIET_STEPS))
            step += 1
            wait_s, felt_s, on_file_s = one_save(method, step, train, usual_s)
            if number == 0:
                found[name]["first"].append(1e3 * wait_s)
                continue
            found[name]["wait"].append(1e3 * wait_s)
            found[name]["felt"].append(1e3 * felt_s)
            found[name]["on_file"].append(1e3 * on_file_s)
    return found


def one_save(
    method: Method, step: int, train: Callable[[], float], usual_s: float
) -> tuple[float, float, float]:
    """Return the longest wait of training, the whole delay, and the time until it is on file."""
    began_s = time.perf_counter()
    method.begin(step)
    call_s = time.perf_counter() - began_s
    waits, is_on_file = [call_s], False
    while not is_on_file:
        began_step_s = time.perf_counter()
        train()
        is_on_file = method.after_step(step)
        waits.append(time.perf_counter() - began_step_s - usual_s)
    return max(waits), sum(waits), time.perf_counter() - began_s


def _ratio(found: dict[str, dict[str, list[float]]], key: str, of: str) -> str:
    """Return the ratio of two medians, with its 90 % bootstrap interval."""
    ours, theirs = found[OURS][key], found[of][key]
    draw = random.Random(SEED)
    ratios = sorted(
        statistics.median(draw.choices(ours, k=len(ours)))
        / statistics.median(draw.choices(theirs, k=len(theirs)))
        for _ in range(_RESAMPLES)
    )
    low, high = ratios[_RESAMPLES // 20], ratios[-_RESAMPLES // 20]
    middle = statistics.median(ours) / statistics.median(theirs)
    return f"{middle:.2f} [{low:.2f} to {high:.2f}]"


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} [{min(values):.0f} to {max(values):.0f}]"


if __name__ == "__main__":
    main()
