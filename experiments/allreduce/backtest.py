"""Compare ``torchloom evaluate`` on the lab's schedule and workload with the measurements.

    python experiments/allreduce/backtest.py experiments/allreduce/changing.json

The results are those of ``run.py``. Schedule and config are written to ``--out``, evaluated, and
both rankings printed; the wire time is not fitted. The exit status is 2 if the results are
incomplete.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from experiments.allreduce.arm import TUNER
from experiments.allreduce.judge import Cost, Phased
from experiments.allreduce.quality import falling, half_interval
from experiments.allreduce.record import UNSHAPED_MBIT, write_bundle
from experiments.allreduce.schedule import Phase, Schedule, least_mbit
from torchloom_core.config.loading import load
from torchloom_core.demos.bandwidth.namespaces import Rate
from torchloom_core.lab.evaluate.allreduce.run import workload_of
from torchloom_core.lab.simulate.allreduce_run import AllreduceRun
from torchloom_core.lab.simulate.links import Bottleneck
from torchloom_policies.allreduce.modes import prior_of

_BYTES_PER_MBIT = 1e6 / 8
CONFIG = """
[weaver]
tick_s = 0.5

[arbiter]
cooldown_s = 0

[policies.allreduce_tuner]
[policies.allreduce_tuner.quality]
{quality}

[evaluate.allreduce]
gradient_bytes = {gradient_bytes}
compute_s = {compute_s}
"""
MODE = """
[evaluate.allreduce.modes.{mode}]
sent = {sent}
link_use = {link_use}
compress_s = {compress_s}
quality = {quality}
"""


class ResultsError(Exception):
    """The results are incomplete."""


@dataclass(frozen=True)
class Measured:
    """The lab's measurements.

    Attributes
    ----------
    steps : list of Phased
        Of static modes, in the phases in which they made a step.
    ends : dict of str to list of float
        By arm, the loss at the end, seed by seed.
    quality : dict of str to float
        From ``quality.py``.
    """

    schedule: Schedule
    costs: list[Cost]
    steps: list[Phased]
    ends: dict[str, list[float]]
    quality: dict[str, float]

    @property
    def losses(self) -> dict[str, float]:
        """By arm, the loss at the end, on the mean over seeds."""
        return {arm: statistics.fmean(each) for arm, each in self.ends.items()}

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.schedule[0].rates)

    def bytes_per_s(self, phase: int) -> float:
        """Return the rate of the slowest link in a phase."""
        rates = self.schedule[phase].rates
        return min(UNSHAPED_MBIT, *(least_mbit(rate) for rate in rates)) * _BYTES_PER_MBIT

    def beside_s(self, cost: Cost) -> float:
        """Return the step time not explained by its bytes: the median over the phases."""
        use = prior_of(cost.mode).link_use
        rests = [
            row.step_s - cost.sent_bytes / use / self.bytes_per_s(row.phase)
            for row in self.steps
            if row.arm == cost.mode
        ]
        return statistics.median(rests) if rests else cost.beside_s


@dataclass(frozen=True)
class Compared:
    """A mode's step in a phase, s."""

    phase: str
    mode: str
    measured_s: float
    predicted_s: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1.0


def read(results: Path) -> Measured:
    """Return the content of the results of ``run.py``.

    Raises
    ------
    ResultsError
        If something is missing.
    """
    try:
        found: dict[str, Any] = json.loads(results.read_text())
        costs = [Cost(**cost) for cost in found["costs"]]
        measured = Measured(
            tuple(_phase(phase) for phase in found["schedule"]),
            costs,
            [
                Phased(**row)
                for row in found["steps"]
                if row["arm"] != TUNER and math.isfinite(row["step_s"])
            ],
            _ends(found["trials"]),
            found["quality"],
        )
    except OSError as error:
        raise ResultsError(f"{results}: {error.strerror}") from None
    except KeyError as error:
        raise ResultsError(f"{results}: need the key {error} in results of run.py") from None
    except (TypeError, ValueError) as error:
        raise ResultsError(f"{results}: need results of run.py: {error}") from None
    if "none" not in {cost.mode for cost in costs}:
        raise ResultsError(f"{results}: need the arm none, the reference of the others")
    return measured


def _phase(row: Mapping[str, Any]) -> Phase:
    return Phase(row["start_s"], row["end_s"], tuple(Rate(**rate) for rate in row["rates"]))


def _ends(trials: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    ends: dict[str, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial["seed"]):
        losses = falling([loss for _, loss in trial["marks"]])
        ends.setdefault(trial["arm"], []).append(losses[-1])
    return ends


def config_of(measured: Measured) -> str:
    """Return the config with the lab's workload.

    The step time not explained by the bytes, at the configured rate and the mode's use of the link,
    is the same in all phases. Computing time is that of the mode with the least of it; the excess
    of another mode counts as its coding.
    """
    plain = next(cost for cost in measured.costs if cost.mode == "none")
    beside_s = {cost.mode: measured.beside_s(cost) for cost in measured.costs}
    compute_s = min(beside_s.values())
    quality = {cost.mode: measured.quality.get(cost.mode, 1.0) for cost in measured.costs}
    text = CONFIG.format(
        quality="\n".join(f"{mode} = {value}" for mode, value in quality.items()),
        gradient_bytes=round(plain.sent_bytes * measured.ranks / 2 / (measured.ranks - 1)),
        compute_s=compute_s,
    )
    for cost in measured.costs:
        text += MODE.format(
            mode=cost.mode,
            sent=cost.sent_bytes / plain.sent_bytes,
            link_use=prior_of(cost.mode).link_use,
            compress_s=beside_s[cost.mode] - compute_s,
            quality=quality[cost.mode],
        )
    return text


def compared(measured: Measured, config: Path) -> list[Compared]:
    """Return each static mode's step in each phase, measured and by the simulator without noise."""
    job = load(config, {}).evaluate.allreduce
    assert job is not None
    workload = workload_of(job, measured.ranks, noise=False)
    rows = []
    for row in measured.steps:
        wire = Bottleneck([0.0], [measured.bytes_per_s(row.phase)], 60.0)
        step = AllreduceRun(workload, wire, np.random.default_rng(0)).step(row.arm)
        rows.append(Compared(row.name, row.arm, row.step_s, step.end_s))
    return rows


def evaluated(measured: Measured, folder: Path, seeds: int) -> dict[str, float]:
    """Write trace and config, evaluate them; return the progress per hour by arm."""
    folder.mkdir(parents=True, exist_ok=True)
    trace, config, out = folder / "lab.tltrace", folder / "lab.toml", folder / "evaluation"
    write_bundle(measured.schedule, trace, force=True)
    config.write_text(config_of(measured))
    command = [sys.executable, "-m", "torchloom_core.cli", "evaluate", str(trace), "--config"]
    command += [str(config), "--policy", "allreduce_tuner", "--seeds", str(seeds)]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    if done.returncode:
        raise ResultsError(f"torchloom evaluate: {done.stderr.strip()}")
    (results,) = json.loads((out / "report.json").read_bytes())["traces"]
    report = results["allreduce"]
    names = {f"static {cost.mode}": cost.mode for cost in measured.costs}
    names["allreduce_tuner"] = TUNER
    return {
        names[arm["name"]]: arm["progress_per_h"]["value"]
        for arm in report["arms"]
        if arm["name"] in names
    }


def tau(losses: Mapping[str, float], progress: Mapping[str, float]) -> float:
    """Return Kendall's tau of two rankings, of the arms that both have."""
    arms = [arm for arm in losses if arm in progress]
    return float(kendalltau([-losses[arm] for arm in arms], [progress[arm] for arm in arms])[0])


def distinguishable_pairs(ends: Mapping[str, Sequence[float]]) -> list[tuple[str, str]]:
    """Return the pairs of arms that the seeds distinguish, the one with the lower loss first.

    The 95 % interval of the mean of their differences, seed by seed, leaves out 0.
    """
    found = []
    for better, worse in permutations(ends, 2):
        gains = [b - a for a, b in zip(ends[better], ends[worse], strict=True)]
        if statistics.fmean(gains) > half_interval(gains):
            found.append((better, worse))
    return found


def show(measured: Measured, progress: Mapping[str, float], steps: Sequence[Compared]) -> None:
    """Print both rankings, and the steps."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    columns = ("lab", "loss at the end", "evaluate", "steps of none an hour")
    table = Table(*columns, title="ranking, the best first", title_justify="left")
    by_loss = sorted(measured.losses, key=lambda arm: measured.losses[arm])
    by_progress = sorted(progress, key=lambda arm: -progress[arm])
    for place in range(max(len(by_loss), len(by_progress))):
        lab, ours = by_loss[place : place + 1], by_progress[place : place + 1]
        cells = [f"{lab[0]}", f"{measured.losses[lab[0]]:.4f}"] if lab else ["", ""]
        cells += [f"{ours[0]}", f"{progress[ours[0]]:.0f}"] if ours else []
        table.add_row(*cells)
    console.print(table)
    static = {arm: loss for arm, loss in measured.losses.items() if arm != TUNER}
    console.print(
        f"Kendall's tau: {tau(static, progress):.2f} of the static modes, "
        f"{tau(measured.losses, progress):.2f} of all arms"
    )
    pairs = [
        pair
        for pair in distinguishable_pairs(measured.ends)
        if all(arm in progress for arm in pair)
    ]
    other = [f"{a} before {b}" for a, b in pairs if progress[a] <= progress[b]]
    but = f", not {', '.join(other)}" if other else ""
    console.print(
        f"of the {len(pairs)} pairs that the seeds distinguish "
        f"{len(pairs) - len(other)} are ranked alike{but}"
    )
    columns = ("phase", "mode", "measured", "predicted", "off")
    table = Table(*columns, title="step, s", title_justify="left")
    for row in steps:
        times = f"{row.measured_s:.3f}", f"{row.predicted_s:.3f}"
        table.add_row(row.phase, row.mode, *times, f"{row.off:+.0%}")
    console.print(table)
    off = [abs(row.off) for row in steps]
    if off:
        console.print(f"median {statistics.median(off):.0%} off, {max(off):.0%} at the most")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="what run.py has written")
    parser.add_argument("--quality", type=Path, help="another quality.json than the run's")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("build/allreduce/backtest"))
    args = parser.parse_args(argv)
    try:
        measured = read(args.results)
        if args.quality:
            measured.quality.update(json.loads(args.quality.read_text())["quality"])
        progress = evaluated(measured, args.out, args.seeds)
        show(measured, progress, compared(measured, args.out / "lab.toml"))
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
