"""Show what a trial found: two tables, a figure, and results.json."""

import itertools
import statistics
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from experiments.forecast_trial.trial import Outcome
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.learning.forecast_score import ForecastScore, Interval

_LEAST_RECALL = 0.03
"""Below this recall precision is that of a handful of moments, and not in the figure."""

_SHOWN = 12
"""So many candidates of the validation are shown; results.json has all."""


def show(outcome: Outcome, console: Console) -> None:
    """Print how the choice was made, and what came of it."""
    console.print(_choice(outcome))
    console.print(_scores(outcome))
    first = outcome.scores[0]
    console.print(
        f"scored {_date(first.from_ns)} to {_date(first.until_ns)}, seed {outcome.seed}: "
        f"{first.samples} moments of {first.components} components, prevalence "
        f"{first.prevalence:.4f}, {first.incidents} incidents",
        soft_wrap=True,
    )
    console.print(f"intervals: {first.auprc.method}", soft_wrap=True)
    for name, above in first.versus.items():
        console.print(f"AUPRC above {name}: {signed(above)}", soft_wrap=True, markup=False)
    console.print(f"published in the data's README: {outcome.published:.3f}")
    console.print(outcome.verdict, style="bold", soft_wrap=True)


def _choice(outcome: Outcome) -> Table:
    folds = len(outcome.validated[0].auprc)
    table = Table(title="AUPRC on earlier time", title_justify="left")
    for column in ("", "mean", *(f"fold {number}" for number in range(1, folds + 1))):
        table.add_column(column, justify="right" if column else "left")
    best = sorted(outcome.validated, key=lambda one: -one.mean)
    for one in itertools.islice(best, _SHOWN):
        table.add_row(one.candidate, f"{one.mean:.4f}", *(f"{value:.4f}" for value in one.auprc))
    return table


def _scores(outcome: Outcome) -> Table:
    table = Table(title="on the time after, scored once", title_justify="left")
    table.add_column("")
    for column in ("AUPRC", "precision", "recall", "F1", "false alarms a node-day", "median lead"):
        table.add_column(column, justify="right")
    for one in outcome.scores:
        table.add_row(
            one.predictor,
            text(one.auprc),
            text(one.precision, 2),
            _recall(one),
            f"{one.f1:.2f}",
            text(one.false_alarms_per_node_day, 4),
            _lead(one),
        )
    return table


def _recall(score: ForecastScore) -> str:
    found = text(score.recall, 2)
    if score.by_chance is msgspec.UNSET:
        return found
    return f"{found}, {score.by_chance:.2f} by chance"


def _lead(score: ForecastScore) -> str:
    if not score.leads_s:
        return "-"
    return f"{statistics.median(score.leads_s) / 3600:.1f} h"


def text(interval: Interval, digits: int = 3) -> str:
    """Return ``0.089 [0.053, 0.144]``."""
    value = f"{interval.value:.{digits}f}"
    if interval.low is None or interval.high is None:
        return value
    return f"{value} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def signed(interval: Interval) -> str:
    """Return ``+0.010 [-0.002, +0.031]``."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.3f}"
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _date(ts_ns: int) -> str:
    return f"{datetime.fromtimestamp(ts_ns / SECOND_NS, UTC):%Y-%m-%d %H:%M}"


def write(outcome: Outcome, folder: Path) -> None:
    """Write ``results.json`` and ``forecasts.png`` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(outcome), indent=1)
    (folder / "results.json").write_bytes(data + b"\n")
    _draw(outcome, folder / "forecasts.png")


def _draw(outcome: Outcome, path: Path) -> None:
    from matplotlib.figure import Figure

    plot = Figure(figsize=(10, 3.8), layout="constrained")
    curves, bars = plot.subplots(1, 2)
    colours = ("#1f6f8b", "#b5482e", "#8a9a5b", "#7a5c8e", "#c9a227", "#999999")
    places = range(len(outcome.scores))
    for place, one, colour in zip(places, outcome.scores, itertools.cycle(colours), strict=False):
        recall = [point.recall for point in one.curve]
        precision = [point.precision for point in one.curve]
        curves.plot(recall, precision, color=colour, linewidth=1.4)
        bars.barh(place, one.auprc.value, color=colour)
        if one.auprc.low is not None and one.auprc.high is not None:
            bars.plot([one.auprc.low, one.auprc.high], [place, place], color="black", linewidth=1)
    curves.set(xlabel="recall, of moments", ylabel="precision, of moments", xlim=(0, 1))
    curves.set_ylim(0, 1.1 * _highest(outcome))
    bars.axvline(outcome.published, color="black", linestyle=":", linewidth=1)
    bars.set_yticks(places, [one.predictor for one in outcome.scores], fontsize=8)
    bars.invert_yaxis()
    bars.set_xlabel("AUPRC, 95 % intervals; dotted: published")
    for axes in (curves, bars):
        axes.spines[["top", "right"]].set_visible(False)
    plot.suptitle(f"{outcome.trial} ({outcome.source})", fontsize=9)
    plot.savefig(path, dpi=130)


def _highest(outcome: Outcome) -> float:
    """Return the highest precision that is to be seen."""
    points = [point for one in outcome.scores for point in one.curve]
    return max((point.precision for point in points if point.recall >= _LEAST_RECALL), default=1)
