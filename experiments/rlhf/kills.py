"""Kill rollout workers at random moments; compare steps and rewards with undisturbed runs.

``python -m experiments.rlhf.kills --minutes 10`` trains with each seed twice: for its share of
the minutes with a ``kill -9`` of a rollout worker every few seconds, and undisturbed for the steps
that are compared.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from scipy import stats

from experiments.rlhf.processes import Line, Play, until

_MANY = 1_000_000
_SLOW_LEARNING = ("--learning-rate", "3e-4")
"""So that the compared steps are those in which the reward rises."""


class Trained(msgspec.Struct):
    """What became of one trainer.

    ``reward``: the mean over the compared steps. ``gap_s``: the longest time between two steps.
    """

    seed: int
    kills: int
    steps: int
    missing_steps: int
    failed: bool
    gap_s: float
    steps_per_s: float
    reward: float
    last_reward: float


def train(
    folder: Path, seed: int, *, rollouts: int, steps: int, kill_every_s: float, for_s: float
) -> Trained:
    """Train with kills for a time, or without (``for_s`` 0) for the compared steps."""
    chance = random.Random(seed)
    with Play(folder, rollouts, seed) as play:
        trainer = play.train(_MANY if for_s else steps, *_SLOW_LEARNING)
        until(lambda: play.lines() or trainer.poll() is not None)
        kills, end_s = 0, time.monotonic() + for_s
        while trainer.poll() is None and (
            time.monotonic() < end_s or (for_s and len(play.lines()) < steps)
        ):
            time.sleep(chance.expovariate(1 / kill_every_s))
            if play.kill(chance):
                kills += 1
                with (folder / "kills.log").open("a") as log:
                    log.write(f"{time.time()}\n")
        failed = bool(for_s) and trainer.poll() is not None
        if not for_s:
            failed = trainer.wait() != 0
        lines = play.lines()
    return judged(lines, seed, kills, steps, failed=failed)


def judged(lines: list[Line], seed: int, kills: int, steps: int, *, failed: bool) -> Trained:
    """Return the figures of a trainer's steps."""
    rewards = [line.reward for line in lines[:steps]]
    return Trained(
        seed=seed,
        kills=kills,
        steps=len(lines),
        missing_steps=len(set(range(1, lines[-1].step + 1)) - {line.step for line in lines}),
        failed=failed,
        gap_s=max(after.t - before.t for before, after in itertools.pairwise(lines)),
        steps_per_s=(len(lines) - 1) / (lines[-1].t - lines[0].t),
        reward=statistics.fmean(rewards),
        last_reward=statistics.fmean(rewards[-steps // 5 :]),
    )


def band(rewards: list[float]) -> tuple[float, float]:
    """Return the 95 % prediction interval of one more reward (Student's t)."""
    count, mean = len(rewards), statistics.fmean(rewards)
    wide = stats.t.ppf(0.975, count - 1) * statistics.stdev(rewards) * (1 + 1 / count) ** 0.5
    return mean - wide, mean + wide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="with kills, all seeds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="steps that are compared")
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--kill-every-s", type=float, default=8.0, help="mean of an exponential")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rlhf-kills-"))
    print(f"Logs: {folder}", flush=True)

    runs: dict[str, list[Trained]] = {"kills": [], "undisturbed": []}
    for seed in range(options.seeds):
        for kind, for_s in (("kills", 60 * options.minutes / options.seeds), ("undisturbed", 0.0)):
            done = train(
                folder / f"{kind}-{seed}",
                seed,
                rollouts=options.rollouts,
                steps=options.steps,
                kill_every_s=options.kill_every_s,
                for_s=for_s,
            )
            runs[kind].append(done)
            print(kind, json.dumps(msgspec.to_builtins(done)), flush=True)
    if options.out:
        options.out.write_text(json.dumps(msgspec.to_builtins(runs), indent=1) + "\n")
    sys.exit(show(runs, options.steps))


def show(runs: dict[str, list[Trained]], steps: int) -> int:
    """Print the table and what must hold; return 1 if it does not."""
    table = Table(title=f"Rewards: means over the first {steps} steps")
    for name in ("run", "seed", "kills", "steps", "steps/s", "longest gap s", "reward", "last"):
        table.add_column(name)
    for kind, all_of in runs.items():
        for one in all_of:
            numbers = (one.steps_per_s, one.gap_s, one.reward, one.last_reward)
            shown = [f"{number:.2f}" for number in numbers]
            table.add_row(kind, str(one.seed), str(one.kills), str(one.steps), *shown)
    Console(width=110).print(table)
    killed = runs["kills"]
    low, high = band([one.reward for one in runs["undisturbed"]])
    failed = sum(one.failed + one.missing_steps for one in killed)
    kills, gap_s = sum(one.kills for one in killed), max(one.gap_s for one in killed)
    inside = sum(low <= one.reward <= high for one in killed)
    print(f"{kills} kills, {failed} failed steps, longest gap {gap_s:.2f} s")
    print(f"reward in the undisturbed band {low:.3f} to {high:.3f}: {inside} of {len(killed)} runs")
    return int(failed > 0 or gap_s > 1.0 or inside < len(killed))


if __name__ == "__main__":
    main()
