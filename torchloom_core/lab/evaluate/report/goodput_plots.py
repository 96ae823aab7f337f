"""Plots of a simulation: goodput, lost time, timeline, cost sensitivity and break-even."""

from collections.abc import Sequence
from typing import Any

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.report.figure import (
    BUCKET_COLOUR,
    KIND_COLOUR,
    SERIES,
    canvas,
)
from torchloom_core.lab.evaluate.report.findings import ranked, watched
from torchloom_core.lab.evaluate.report.wording import POINTS
from torchloom_core.lab.evaluate.results import ArmSummary, Simulation

_ROW_INCH = 0.28
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
            colour, value = KIND_COLOUR[arm.kind], arm.goodput
            if value.low is not None and value.high is not None:
                axes.plot([value.low, value.high], [row, row], color=colour, lw=2.2, alpha=0.55)
            axes.plot([value.value], [row], "o", color=colour, ms=6)
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
                for point in line:
                    if point.gain.low is not None and point.gain.high is not None:
                        ends = [POINTS * point.gain.low, POINTS * point.gain.high]
                        axes.plot([point.factor] * 2, ends, color=colour, lw=1.2, alpha=0.5)
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
