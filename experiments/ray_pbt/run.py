"""Measure Tune's population-based training beside TorchLoomPBT.

``python -m experiments.ray_pbt.run``: both make the same schedule of mutations; compared is the
time to the same population loss.
"""

import argparse
import json
import logging
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib as mpl
import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from scipy import stats

from experiments.ray_pbt.training import loom_member, tune_member
from torchloom_threadlet.adapters.ray import TorchLoomPBT

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
MEMBERS = 4
ARMS = {
    "Tune": (PopulationBasedTraining, tune_member, False),
    "Tune, reuse_actors": (PopulationBasedTraining, tune_member, True),
    "TorchLoomPBT": (TorchLoomPBT, loom_member, False),
}


class Journal(tune.Callback):
    """Notes when each result comes."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Note a result."""
        names = ("training_iteration", "loss", "rate", "pid")
        line = {name: result[name] for name in names}
        self.lines.append(line | {"at_s": time.monotonic(), "member": trials.index(trial)})


def seeded(kind: type[PopulationBasedTraining], seed: int) -> type[PopulationBasedTraining]:
    """Return a scheduler whose draws follow from the seed, the member and the time.

    Ray itself draws from Python's global generator too, at times that differ between two runs.
    """

    class Seeded(kind):
        def _checkpoint_or_exploit(self, trial: Any, *rest: Any) -> None:
            self._seed(trial, 0)
            super()._checkpoint_or_exploit(trial, *rest)

        def _get_new_config(self, trial: Any, trial_to_clone: Any) -> Any:
            self._seed(trial, 1)
            return super()._get_new_config(trial, trial_to_clone)

        def _seed(self, trial: Any, draw: int) -> None:
            member = list(self._trial_state).index(trial)
            at = int(self._trial_state[trial].last_train_time)
            number = ((seed * 1000 + at) * 100 + member) * 2 + draw
            random.seed(number)
            np.random.seed(number)

    return Seeded


def measure(arm: str, seed: int, steps: int, iterations: int, synch: bool, folder: Path) -> dict:
    """Run one population; return its journal, with times from when all have trained once."""
    kind, member, reuses = ARMS[arm]
    random.seed(seed)
    np.random.seed(seed)
    rates = [float(x) for x in 10 ** np.random.uniform(-4.5, -2.5, MEMBERS)]
    journal = Journal()
    scheduler = seeded(kind, seed)(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"lr": tune.loguniform(1e-5, 1.0)},
        quantile_fraction=0.25,
        resample_probability=0.25,
        synch=synch,
        log_config=False,
    )
    tuner = tune.Tuner(
        tune.with_resources(member, {"cpu": 1}),
        param_space={
            "lr": tune.sample_from(lambda spec: rates[spec.config.member]),
            "member": tune.grid_search(list(range(MEMBERS))),
            "steps": steps,
        },
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=scheduler, reuse_actors=reuses
        ),
        run_config=tune.RunConfig(
            name=f"{arm.replace(' ', '').replace(',', '-')}-{seed}-{time.time_ns()}",
            storage_path=str(folder),
            stop={"training_iteration": iterations},
            callbacks=[journal],
            verbose=0,
        ),
    )
    begin = time.monotonic()
    tuner.fit()
    lines = journal.lines
    first = max(line["at_s"] for line in lines if line["training_iteration"] == 1)
    for line in lines:
        line["at_s"] -= first
    return {"arm": arm, "seed": seed, "start_s": first - begin, "lines": lines}


def population_loss(lines: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the population's mean loss after each result, once each member has one."""
    latest: dict[int, float] = {}
    found = []
    for line in lines:
        latest[line["member"]] = line["loss"]
        if len(latest) == MEMBERS:
            found.append((line["at_s"], statistics.fmean(latest.values())))
    return found


def schedule(lines: list[dict[str, Any]]) -> list[tuple[int, int, float]]:
    """Return the rate of each member at each iteration."""
    return sorted((x["training_iteration"], x["member"], x["rate"]) for x in lines)


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per seed and arm the time to the loss that the worst arm reaches at last."""
    rows = []
    for seed in sorted({run["seed"] for run in runs}):
        mine = [run for run in runs if run["seed"] == seed]
        curves = {run["arm"]: population_loss(run["lines"]) for run in mine}
        target = max(min(loss for _, loss in curve) for curve in curves.values())
        for run in mine:
            at_s = next(at for at, loss in curves[run["arm"]] if loss <= target)
            rows.append(
                {
                    "seed": seed,
                    "arm": run["arm"],
                    "target": target,
                    "at_s": at_s,
                    "start_s": run["start_s"],
                    "processes": len({line["pid"] for line in run["lines"]}),
                    "same": schedule(run["lines"]) == schedule(mine[0]["lines"]),
                }
            )
    return rows


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval by Student's t, of logarithms: ratios multiply."""
    logs = np.log(values)
    half = 0.0
    if len(logs) > 1:
        half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    mean = logs.mean()
    return tuple(float(np.exp(x)) for x in (mean, mean - half, mean + half))


def main() -> None:
    """Run the arms for each seed in turn; print a table, write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=500, help="between two perturbations")
    parser.add_argument("--iterations", type=int, default=4, help="one more than perturbations")
    parser.add_argument("--add", action="store_true", help="to the runs that NAME.json has")
    parser.add_argument("--asynchronous", action="store_true", help="Tune's default, synch=False")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/ray_pbt"))
    parser.add_argument("--name", default="synchronous")
    options = parser.parse_args()
    ray.init(num_cpus=MEMBERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    path = HERE / f"{options.name}.json"
    runs = json.loads(path.read_text()) if options.add else []
    for seed in options.seeds:
        for arm in options.arms:
            runs.append(
                measure(
                    arm,
                    seed,
                    options.steps,
                    options.iterations,
                    not options.asynchronous,
                    options.folder,
                )
            )
            print(f"seed {seed}, {arm}: {runs[-1]['lines'][-1]['at_s']:.1f} s", flush=True)
            path.write_text("[" + ",\n".join(map(json.dumps, runs)) + "]\n")
    report(runs, path.with_suffix(".png"))


def report(runs: list[dict[str, Any]], plot: Path) -> None:
    """Print the table of runs and the ratios; write the plot."""
    arms = [arm for arm in ARMS if any(run["arm"] == arm for run in runs)]
    rows = compare(runs)
    print("\n| seed | arm | start [s] | time to the loss [s] | loss | processes | same schedule |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['seed']} | {row['arm']} | {row['start_s']:.1f} | {row['at_s']:.2f} "
            f"| {row['target']:.4f} | {row['processes']} | {'yes' if row['same'] else 'no'} |"
        )
    ours = {row["seed"]: row for row in rows if row["arm"] == "TorchLoomPBT"}
    for arm in arms[:-1]:
        theirs = [row for row in rows if row["arm"] == arm]
        ratio = interval([row["at_s"] / ours[row["seed"]]["at_s"] for row in theirs])
        whole = interval(
            [
                (row["at_s"] + row["start_s"])
                / (ours[row["seed"]]["at_s"] + ours[row["seed"]]["start_s"])
                for row in theirs
            ]
        )
        print("{}: {:.1f} times slower [{:.1f}, {:.1f}]".format(arm, *ratio), end="; ")
        print("with the start of the first processes {:.1f} [{:.1f}, {:.1f}]".format(*whole))
    figure, axes = plt.subplots(figsize=(7, 4))
    for arm, colour in zip(arms, ("C1", "C2", "C0"), strict=False):
        for run in runs:
            if run["arm"] == arm:
                axes.plot(
                    *zip(*population_loss(run["lines"]), strict=True),
                    color=colour,
                    label=arm if run["seed"] == 0 else None,
                )
    axes.set(xlabel="time since all members trained once [s]", ylabel="mean loss of the population")
    axes.set_yscale("log")
    axes.legend()
    figure.savefig(plot, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
