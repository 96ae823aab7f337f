"""Compare training that loses and regains a replica group with training that does not.

    python experiments/constant_batch/run.py [--seeds 20]

Once with the global batch kept, once with a batch per group. Writes results.json and loss.png.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from torchloom_threadlet.training.global_batch import GlobalBatch, Part

HERE = Path(__file__).parent
STEPS, LOST_AT, BACK_AT = 600, 200, 400
EVERY = 5
GLOBAL_BATCH, MICRO_BATCH = 62, 16
LR, MOMENTUM = 0.1, 0.9
RESAMPLES = 10_000

ARMS = {
    "undisturbed": "two groups all the time",
    "global batch kept": "one of two groups for a while, the same samples a step",
    "batch per group": "one of two groups for a while, as many samples a group",
}

_digits = load_digits()
IMAGES = torch.tensor(_digits.data, dtype=torch.float32) / 16
LABELS = torch.tensor(_digits.target)


def participants(arm: str, step: int) -> int:
    return 2 if arm == "undisturbed" or not LOST_AT <= step < BACK_AT else 1


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def shares(arm: str, batch: GlobalBatch, step: int) -> list[list[Part]]:
    """Return each group's micro-batches of a step."""
    count = participants(arm, step)
    if arm == "batch per group" and batch.size != count * GLOBAL_BATCH // 2:
        batch.resize(count * GLOBAL_BATCH // 2, step)
    return [batch.share(step, group, count) for group in range(count)]


def train(arm: str, seed: int, steps: int = STEPS) -> list[float]:
    """Return the loss over all of the data, after each ``EVERY``-th step."""
    model = build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    batch = GlobalBatch(len(IMAGES), GLOBAL_BATCH, MICRO_BATCH, seed=seed)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        groups = shares(arm, batch, step)
        for parts in groups:
            for part in parts:
                loss = nn.functional.cross_entropy(model(IMAGES[part.rows]), LABELS[part.rows])
                (part.weight * loss / len(groups)).backward()  # torchft's mean over participants
        optimizer.step()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                losses.append(nn.functional.cross_entropy(model(IMAGES), LABELS).item())
    return losses


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over seeds and its bootstrap interval of 95 %."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(differences), size=(RESAMPLES, len(differences)))
    means = differences[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)


def compare(curves: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Compare each arm's curves, shape ``(seeds, points)``, with the undisturbed of its seed."""
    usual = curves["undisturbed"]
    noise = usual.std(axis=0, ddof=1)
    points = EVERY * np.arange(1, usual.shape[1] + 1)
    alone = (points > LOST_AT) & (points <= BACK_AT)
    found: dict[str, dict[str, Any]] = {}
    for arm in list(ARMS)[1:]:
        apart = curves[arm] - usual
        log_ratio = np.log(curves[arm] / usual)
        found[arm] = {
            "loss_ratio_while_alone": np.exp(interval(log_ratio[:, alone].mean(axis=1))).tolist(),
            "loss_ratio_at_the_end": np.exp(interval(log_ratio[:, -10:].mean(axis=1))).tolist(),
            "largest_difference": float(np.abs(apart).max()),
            "largest_difference_in_seed_sd": float((np.abs(apart) / noise).max()),
            "mean_curve_within_one_seed_sd": float(
                (np.abs(apart.mean(axis=0)) <= noise)[alone].mean()
            ),
            "points_of_curves_within_two_seed_sd": float(
                (np.abs(apart) <= 2 * noise)[:, alone].mean()
            ),
        }
    return found


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    points = EVERY * np.arange(1, curves["undisturbed"].shape[1] + 1)
    axes.axvspan(LOST_AT, BACK_AT, color="0.93", label="one of two groups")
    usual = np.log(curves["undisturbed"])
    mean, noise = usual.mean(axis=0), usual.std(axis=0, ddof=1)
    axes.fill_between(
        points,
        np.exp(mean - noise),
        np.exp(mean + noise),
        color="C0",
        alpha=0.2,
        lw=0,
        label="seed noise",
    )
    styles = {"undisturbed": "C0-", "global batch kept": "k:", "batch per group": "C1-"}
    for arm, losses in curves.items():
        axes.plot(points, np.exp(np.log(losses).mean(axis=0)), styles[arm], label=arm)
    axes.set(yscale="log", xlabel="step", ylabel="loss, geometric mean over seeds")
    axes.legend()
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    started = time.monotonic()
    curves = {arm: np.array([train(arm, seed) for seed in range(seeds)]) for arm in ARMS}
    found = compare(curves)
    for arm, figures in found.items():
        while_alone, at_the_end = (
            "{:.3f} [{:.3f}, {:.3f}]".format(*figures[name])
            for name in ("loss_ratio_while_alone", "loss_ratio_at_the_end")
        )
        print(
            f"{arm}: loss {while_alone} of undisturbed while alone, {at_the_end} at the end; "
            f"at most {figures['largest_difference']:.2g} apart, "
            f"{figures['largest_difference_in_seed_sd']:.2g} seed sd; "
            f"{figures['points_of_curves_within_two_seed_sd']:.0%} within two"
        )
    print(f"{seeds} seeds, {time.monotonic() - started:.0f} s")
    results = {"seeds": seeds, "arms": found}
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    draw(curves, HERE / "loss.png")
    return 0 if found["global batch kept"]["largest_difference_in_seed_sd"] < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
