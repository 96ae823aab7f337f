"""Plots of a trace: its simulation, and the forecasts of predictors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.report.figure import (
    BUCKET_COLOUR,
    KIND_COLOUR,
    SERIES,
    Canvas,
    canvas,
    draw_estimate,
    draw_interval,
)
from torchloom_core.lab.evaluate.report.findings import ranked, watched
from torchloom_core.lab.evaluate.report.wording import POINTS, estimate
from torchloom_core.lab.evaluate.results import ArmSummary, Simulation
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore

_ROW_INCH = 0.28
_HOUR_S = 3600.0
_DAY_NS = 86_400 * SECOND_NS

_DECIDED = {
    "decided cordon": ("x", "#0a7d91", "node cordoned"),
    "decided knob": (".", "#bf3989", "knob set"),
    "decided checkpoint": ("|", "#d4a72c", "checkpoint on demand"),
}
_LOWER = 0.3
"""Offset of decisions below their row, since many coincide with their effects."""
_MARK_OF = {
    **_DECIDED,
    "down": ("v", "#cf222e", "failure that hit the job"),
    "hit_missed": ("o", "#1a7f37", "failure of a node just left"),
    "migrated": ("^", "#8250df", "migration"),
    "waiting": ("s", "#7d4e2d", "too few nodes"),
}
"""Marks of the timeline by kind of decision or event, in drawing order."""
_NO_MARK = ("", "", "")


def goodput_plot(simulation: Simulation) -> str:
    """Return every arm's goodput with its interval, the best on top."""
    arms = _ranked(simulation)
    with canvas(9.6, 0.9 + _ROW_INCH * len(arms)) as drawn:
        axes = drawn.axes
        for row, arm in enumerate(arms):
            draw_estimate(axes, row, arm.goodput, "o", KIND_COLOUR[arm.kind])
        reference = next(arm for arm in arms if arm.name == simulation.reference)
        axes.axvline(reference.goodput.value, color="#6e7781", lw=1, ls="--")
        _name_rows(axes, arms)
        axes.set_xlabel("goodput: useful share of all paid GPU time")
    return drawn.svg


def bucket_plot(simulation: Simulation) -> str:
    """Return the GPU time that was not useful by bucket, in percent, one bar per arm."""
    arms = _ranked(simulation)
    with canvas(9.6, 1.3 + _ROW_INCH * len(arms)) as drawn:
        axes = drawn.axes
        left = [0.0] * len(arms)
        for bucket, colour in BUCKET_COLOUR.items():
            shares = [POINTS * arm.buckets.get(bucket, 0.0) for arm in arms]
            axes.barh(range(len(arms)), shares, left=left, color=colour, height=0.7, label=bucket)
            left = [a + b for a, b in zip(left, shares, strict=True)]
        _name_rows(axes, arms)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("% of all GPU-seconds")
        drawn.figure.legend(loc="outside upper center", ncols=8, fontsize=9, handlelength=1)
    return drawn.svg


def timeline_plot(simulation: Simulation, start_ns: int) -> str:
    """Return the events of the first seed's runs, one row per arm with a timeline."""
    runs = {run.arm: run for run in simulation.runs if run.timeline}
    arms = [arm for arm in _ranked(simulation) if arm.name in runs]
    if not arms:
        return ""
    with canvas(9.6, 1.1 + _ROW_INCH * len(arms)) as drawn:
        for mark, colour, meaning in dict.fromkeys(_MARK_OF.values()):
            points = [
                ((entry.ts_ns - start_ns) / _DAY_NS, row - _LOWER * (entry.kind in _DECIDED))
                for row, arm in enumerate(arms)
                for entry in runs[arm.name].timeline
                if _MARK_OF.get(entry.kind, _NO_MARK)[2] == meaning
            ]
            if points:
                days, rows = zip(*points, strict=True)
                drawn.axes.plot(days, rows, mark, color=colour, ms=5, label=meaning, ls="none")
        _name_rows(drawn.axes, arms)
        drawn.axes.set_xlabel("days from the start of the trace")
        drawn.figure.legend(loc="outside upper center", ncols=5, fontsize=9)
    return drawn.svg


def sensitivity_plot(simulation: Simulation) -> str:
    """Return the gain of each arm over the same job without it, as each cost varies."""
    points = simulation.sensitivity
    costs = sorted({point.cost for point in points})
    arms = sorted({point.arm for point in points})
    if not costs:
        return ""
    with canvas(2.5 * len(costs) + 0.6, 2.7, len(costs), sharey=True, squeeze=False) as drawn:
        for axes, cost in zip(drawn.axes[0], costs, strict=True):
            axes.axhline(0, color="#24292f", lw=0.8)
            for arm, colour in zip(arms, SERIES * len(arms), strict=False):
                line = sorted(
                    (p for p in points if (p.arm, p.cost) == (arm, cost)), key=lambda p: p.factor
                )
                at = [point.factor for point in line]
                gains = [POINTS * point.gain.value for point in line]
                axes.plot(at, gains, "o-", ms=3.5, lw=1.4, color=colour, label=arm)
                thin: dict[str, Any] = {"color": colour, "lw": 1.2, "alpha": 0.5}
                for point in line:
                    draw_interval(axes, point.factor, point.gain, scale=POINTS, **thin)
            axes.set_xscale("log", base=2)
            factors = sorted({point.factor for point in points if point.cost == cost})
            axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
            axes.set_title(cost)
            axes.set_xlabel("cost factor")
        drawn.axes[0][0].set_ylabel("gain, points")
        handles, labels = drawn.axes[0][0].get_legend_handles_labels()
        drawn.figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return drawn.svg


def break_even_plot(simulation: Simulation) -> str:
    """Return the expected gain of a move by precision, and the measured gains of the arms."""
    rule = simulation.break_even
    if rule.loss_gpu_s <= 0:
        return ""
    with canvas(6.2, 2.7) as drawn:
        axes = drawn.axes
        worth = [(p * rule.loss_gpu_s - rule.price_gpu_s) / 3600 for p in (0.0, 1.0)]
        axes.plot([0, 1], worth, color="#24292f", lw=1.4)
        axes.axhline(0, color="#6e7781", lw=0.8)
        axes.axvline(rule.precision, color="#cf222e", lw=1.2, ls="--")
        axes.annotate(
            f"break-even {rule.precision:.3g}", (rule.precision, worth[1]), color="#cf222e",
            xytext=(4, -4), textcoords="offset points", va="top",
        )  # fmt: skip
        gpu_h = simulation.runs[0].wall_s * simulation.runs[0].gpus / 3600
        moving = [arm for arm in watched(simulation) if arm.moves and arm.name in rule.measured]
        for arm, colour in zip(moving, SERIES * len(moving), strict=False):
            precision, gain = rule.measured[arm.name], arm.versus_without
            if gain is not None:
                value = gain.value * gpu_h / arm.moves
                label = f"{arm.name} ({precision:.2g}, {value:.3g})"
                axes.plot([precision], [value], "o", color=colour, label=label)
        axes.set_xlabel("precision of an alarm")
        axes.set_ylabel("GPU-hours gained per move")
        if moving:
            axes.legend(fontsize=9, loc="lower right")
    return drawn.svg


def _ranked(simulation: Simulation) -> list[ArmSummary]:
    """Return the arms, the worst first: rows are drawn from the bottom."""
    return ranked(simulation.arms)[::-1]


def _name_rows(axes: Any, arms: Sequence[ArmSummary]) -> None:
    axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
    for label, arm in zip(axes.get_yticklabels(), arms, strict=True):
        label.set_color(KIND_COLOUR[arm.kind])
        label.set_fontweight("bold" if arm.kind == "candidate" else "normal")
    axes.set_ylim(-0.6, len(arms) - 0.4)


@contextmanager
def _small(title: str) -> Iterator[Canvas]:
    """Yield a small figure with a title; it gets a legend."""
    with canvas(4.4, 3.2) as drawn:
        yield drawn
        drawn.axes.set_title(title)
        drawn.axes.legend(fontsize=8)


def curve_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the precision-recall curve of every predictor, and the prevalence."""
    with _small("Precision and recall of samples, AUPRC") as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            recall = [point.recall for point in score.curve]
            precision = [point.precision for point in score.curve]
            label = f"{score.predictor}, {estimate(score.auprc)}"
            axes.step(recall, precision, where="post", color=colour, lw=1.4, label=label)
        axes.axhline(scores[0].prevalence, color="#6e7781", lw=1, ls="--", label="prevalence")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    return drawn.svg


def calibration_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the observed frequency against the forecast probability."""
    with _small("Calibration") as drawn:
        axes = drawn.axes
        top = max((max(b.forecast, b.observed) for s in scores for b in s.calibration), default=1.0)
        axes.plot([0, top], [0, top], color="#6e7781", lw=1, ls="--", label="perfect calibration")
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            forecast = [b.forecast for b in score.calibration]
            observed = [b.observed for b in score.calibration]
            axes.plot(forecast, observed, "o-", color=colour, ms=4, lw=1.2, label=score.predictor)
        axes.set(xlabel="forecast probability", ylabel="observed frequency")
    return drawn.svg


def lead_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the share of incidents found at least a given lead time ahead."""
    with _small("Incidents found at least this long ahead") as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            leads = sorted(score.leads_s, reverse=True)
            share = [(number + 1) / max(score.incidents, 1) for number in range(len(leads))]
            hours = [lead / _HOUR_S for lead in leads]
            axes.step(hours, share, where="pre", color=colour, lw=1.4, label=score.predictor)
        axes.set(xlabel="lead time, hours", ylabel="share of incidents", ylim=(0, 1.02))
    return drawn.svg


def false_alarm_plot(scores: Sequence[ForecastScore], unit: AlarmUnit) -> str:
    """Return recall of incidents against false alarms, one point per predictor."""
    with _small("At the threshold") as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            alarms, recall = unit.scaled(score.false_alarms_per_node_day), score.recall
            draw_interval(axes, recall.value, alarms, upright=False, color=colour, lw=1.2)
            draw_interval(axes, alarms.value, recall, color=colour, lw=1.2)
            axes.plot([alarms.value], [recall.value], "o", color=colour, label=score.predictor)
        axes.set(xlabel=f"false alarms {unit.text}", ylabel="recall of incidents", ylim=(0, 1.02))
        axes.set_xlim(left=0)
    return drawn.svg
