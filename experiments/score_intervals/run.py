"""Measure the coverage of 95 % intervals, and how often uninformative scores have skill.

    python experiments/score_intervals/run.py [--draws 800]

Both on synthetic fleets, with torchLoom's own labels, scores and rule for skill. Writes
results.json and coverage.png.
"""

import argparse
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from statsmodels.stats.proportion import proportion_confint

from experiments.score_intervals.fleet import DAY_NS, SETTINGS, Fleet, Setting, draw
from torchloom_core.lab.evaluate.forecasts.alarms import threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import random_scores
from torchloom_core.lab.evaluate.forecasts.intervals import average_precision
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.learning.forecast_score import ForecastScore, Interval
from torchloom_core.lab.learning.skill import RANDOM, with_verdict
from torchloom_core.plugin import Floats

HERE = Path(__file__).parent
LEAST, MOST = 0.92, 0.98
"""Limits of the coverage."""
FALSE_SKILL = 0.05
FALSE_ALARMS = 0.01
FIGURES = ("AUPRC", "above random", "AUPRC of the clock", "precision", "recall", "false alarms")


def knowing_nothing(fleet: Fleet, random: np.random.Generator) -> dict[str, Floats]:
    """Return scores that use only the time, the node's name, or nothing."""
    days = fleet.setting.times_ns / DAY_NS
    shape = len(days), len(fleet)
    records = np.searchsorted(fleet.starts, days)
    share = np.nancumsum(np.nansum(fleet.outcome, axis=1)) / np.arange(1, len(days) + 1)
    by_time = {
        "the day's number": days,
        "the day's number, backwards": -days,
        "the day of the week": days % 7,
        "records so far": records,
        "the prevalence so far": share,
        "a walk that all share": np.cumsum(random.normal(size=len(days))),
    }
    return {
        "noise": random.random(shape),
        "one constant": np.full(shape, 0.3),
        "a constant a node": np.tile(random.random(len(fleet)), (len(days), 1)),
        "a constant a rack": np.tile(np.repeat(random.random(shape[1] // 10), 10), (len(days), 1)),
        "a walk a node": np.cumsum(random.normal(size=shape), axis=0),
        **{name: np.tile(of[:, None] * 1.0, (1, shape[1])) for name, of in by_time.items()},
    }


def scored(fleet: Fleet, scores: Floats, seed: int) -> ForecastScore:
    """Set the threshold on the time before, and score the time after."""
    earlier, later = fleet.judged(scores)
    return with_verdict(
        score(
            later,
            predictor="made up",
            threshold=threshold_for(earlier, FALSE_ALARMS),
            threshold_from="the time before",
            others={RANDOM: random_scores(later.score.shape, seed)},
        )
    )


def figures_of(fleet: Fleet, seed: int) -> dict[str, Interval]:
    """Return the intervals of one draw; the threshold is the same in all of them."""
    random = np.random.default_rng([seed, 1])
    _, later = fleet.judged(fleet.informative(random))
    found = score(
        later,
        predictor="informative",
        threshold=2.0,
        threshold_from="a constant",
        others={RANDOM: random_scores(later.score.shape, seed)},
    )
    clock = np.tile(fleet.setting.times_ns[:, None] * 1.0, (1, len(fleet)))
    timed = scored(fleet, clock, seed)
    all_of_them = (
        found.auprc,
        found.versus[RANDOM],
        timed.auprc,
        found.precision,
        found.recall,
        found.false_alarms_per_node_day,
    )
    return dict(zip(FIGURES, all_of_them, strict=True))


class Truth:
    """What the figures are of the whole population: of all draws at once."""

    def __init__(self, setting: Setting, seeds: Sequence[int]) -> None:
        self._scores: dict[str, list[Floats]] = defaultdict(list)
        self._came: list[Floats] = []
        self._counts = np.zeros(4)
        for seed in seeds:
            self._add(draw(setting, seed), seed)

    def _add(self, fleet: Fleet, seed: int) -> None:
        _, later = fleet.judged(fleet.informative(np.random.default_rng([seed, 1])))
        known = ~np.isnan(later.outcome)
        self._came.append(later.outcome[known] == 1.0)
        self._scores["AUPRC"].append(later.score[known])
        at = np.broadcast_to(later.times_ns[:, None] * 1.0, known.shape)
        self._scores["AUPRC of the clock"].append(at[known])
        found = score(later, predictor="informative", threshold=2.0, threshold_from="a constant")
        false = round(found.false_alarms_per_node_day.value * found.component_days)
        self._counts += (len(found.leads_s), found.incidents, false, found.component_days)

    def figures(self) -> dict[str, float]:
        """Return the truth of each figure; a random score's AUPRC is the prevalence."""
        came = np.concatenate(self._came)
        values = {
            name: average_precision(np.concatenate(scores), came).value
            for name, scores in self._scores.items()
        }
        found, incidents, false, days = self._counts
        return {
            **values,
            "above random": values["AUPRC"] - float(came.mean()),
            "precision": found / (found + false),
            "recall": found / incidents,
            "false alarms": false / days,
        }


def play(setting: Setting, draws: int, console: Console) -> dict[str, object]:
    """Return what came of one setting."""
    truth = Truth(setting, range(draws)).figures()
    covered: dict[str, list[bool]] = defaultdict(list)
    skilled: dict[str, list[bool]] = defaultdict(list)
    failures = []
    with Progress(console=console) as bar:
        for seed in bar.track(range(draws), description=setting.name):
            fleet = draw(setting, seed)
            for name, interval in figures_of(fleet, seed).items():
                if interval.low is not None and interval.high is not None:
                    covered[name].append(interval.low <= truth[name] <= interval.high)
            for name, scores in knowing_nothing(fleet, np.random.default_rng([seed, 2])).items():
                found = scored(fleet, scores, seed)
                skilled[name].append(found.verdict in ("weak", "useful"))
            failures.append(found.incidents)
    return {
        "setting": setting.name,
        "failures": [min(failures), float(np.median(failures)), max(failures)],
        "truth": truth,
        "held": {name: [int(sum(each)), len(each)] for name, each in covered.items()},
        "skilled": {name: [int(sum(each)), len(each)] for name, each in skilled.items()},
    }


def show(results: Sequence[Mapping[str, object]], console: Console) -> bool:
    """Print both tables; return whether all limits are met."""
    good = True
    for title, key, holds in (
        (
            "95 % intervals with the true value",
            "held",
            lambda share: LEAST <= share <= MOST,
        ),
        ("draws in which it has skill", "skilled", lambda share: share <= FALSE_SKILL),
    ):
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for result in results:
            table.add_column(str(result["setting"]), justify="right")
        for name in results[0][key]:  # type: ignore[attr-defined]
            cells = []
            for result in results:
                count, of = result[key].get(name, (0, 0))  # type: ignore[attr-defined]
                share = count / of if of else 0.0
                good &= holds(share)
                mark = "" if holds(share) else " violated"
                cells.append(f"{count} of {of}, {share:.3f}{mark}")
            table.add_row(name, *cells)
        console.print(table)
    return good


def draw_coverage(results: Sequence[Mapping[str, object]], path: Path) -> None:
    """Draw the coverage of the intervals, with its own interval."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.axhspan(LEAST, MOST, color="0.9", label=f"{LEAST:g} to {MOST:g}")
    axes.axhline(0.95, color="0.5", linewidth=0.8)
    for number, result in enumerate(results):
        covered = [result["held"].get(name, (0, 1)) for name in FIGURES]  # type: ignore[attr-defined]
        at = np.arange(len(FIGURES)) + 0.2 * (number - 1)
        shares = np.array([count / of for count, of in covered])
        ends = np.array([proportion_confint(count, of, method="wilson") for count, of in covered])
        off = np.abs(ends.T - shares)
        axes.errorbar(at, shares, off, fmt="o", capsize=2, label=str(result["setting"]))
    axes.set_xticks(range(len(FIGURES)), FIGURES)
    axes.set_ylabel("intervals that contain the true value")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=4)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=800, help="of each setting")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 160)
    results = [play(setting, args.draws, console) for setting in SETTINGS]
    good = show(results, console)
    args.out.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    text = json.dumps({"machine": machine, "draws": args.draws, "results": results}, indent=1)
    (args.out / "results.json").write_text(text + "\n")
    draw_coverage(results, args.out / "coverage.png")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
