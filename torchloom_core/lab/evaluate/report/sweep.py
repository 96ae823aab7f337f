"""How many spares to pay for: recommendations and a plot."""

from typing import Any

from torchloom_core.lab.evaluate.goodput.compare import MIN_SEEDS
from torchloom_core.lab.evaluate.report import wording
from torchloom_core.lab.evaluate.report.figure import SERIES, canvas, draw_interval
from torchloom_core.lab.evaluate.results import AS_PLANNED, Sweep, SweepPoint
from torchloom_core.lab.learning.forecast_score import Interval


def recommendations(sweep: Sweep, seeds: int) -> list[str]:
    """Return for each arm how many spares pay: the fewest whose goodput is not clearly lower."""
    return [
        _growth(sweep, name) if _grows(sweep, name) else _answer(sweep, name, seeds)
        for name in sweep.lines
    ]


def enough(sweep: Sweep, name: str) -> SweepPoint | None:
    """Return the least value whose goodput is not clearly below the best; None for few seeds."""
    line = sweep.lines[name]
    if any(point.to_best is not None and point.to_best.low is None for point in line):
        return None
    return next(
        point for point in line if point.to_best is None or not wording.is_clear(point.to_best)
    )


def _grows(sweep: Sweep, name: str) -> bool:
    """Return whether an arm trains on the spares."""
    return f"{name}{AS_PLANNED}" in sweep.lines


def _growth(sweep: Sweep, name: str) -> str:
    """Return the recommendation for an arm that trains on its spares."""
    first, last = sweep.lines[name][0], sweep.lines[name][-1]
    more = last.useful_gpu_h_per_day.value - first.useful_gpu_h_per_day.value
    return (
        f"{name}: all {sweep.name} train, with a larger global batch. Each adds on average "
        f"{more / (last.value - first.value):.1f} useful GPU-h per day and costs "
        f"{sweep.gpu_h_per_day:g}. If a larger batch is worth nothing to you, see "
        f"{name}{AS_PLANNED}."
    )


def _answer(sweep: Sweep, name: str, seeds: int) -> str:
    line, chosen = sweep.lines[name], enough(sweep, name)
    best = next(point for point in line if point.value == sweep.best[name])
    if chosen is None:
        return (
            f"{name}: too few seeds for a recommendation: need {MIN_SEEDS}, was {seeds}. With "
            f"{sweep.beside}, goodput was highest at {best.value} {sweep.name}, "
            f"{wording.estimate(best.goodput)}."
        )
    if chosen is best:
        count, where = f"{best.value}", f"there, {wording.estimate(best.goodput)}"
    else:
        count = f"{chosen.value} to {best.value}"
        where = (
            f"at {best.value}, {wording.estimate(best.goodput)}, and not clearly lower at "
            f"{chosen.value}, {wording.estimate(chosen.goodput)}"
        )
    beyond = "larger values were not tried"
    rest = [point.more_gpu_h_per_day for point in line if point.value > best.value]
    if rest and rest[0] is not None:
        beyond = (
            f"one more than {best.value} adds {wording.estimate(rest[0], 1)} useful GPU-h per day "
            f"and costs {sweep.gpu_h_per_day:g}"
        )
    return (
        f"{name}: pay for {count} {sweep.name} in addition to {sweep.beside}. "
        f"Goodput is highest {where}; {beyond}."
    )


def sweep_plot(sweep: Sweep) -> str:
    """Return goodput by the number of spares, and the gain of each further one."""
    with canvas(9.6, 3.6, 2) as drawn:
        goodput, more = drawn.axes
        colours = SERIES * len(sweep.lines)
        for (names, line), colour in zip(_distinct_lines(sweep), colours, strict=False):
            name = names[0]
            style = {"color": colour, "lw": 1.4, "ls": "--" if name.endswith(AS_PLANNED) else "-"}
            at = [point.value for point in line]
            label = " = ".join(names)
            goodput.plot(at, [p.goodput.value for p in line], "o", ms=3, label=label, **style)
            _band(goodput, at, [p.goodput for p in line], colour)
            chosen = None if _grows(sweep, name) else enough(sweep, name)
            if chosen is not None:
                ring = {"color": colour, "ms": 8, "mfc": "none"}
                goodput.plot([chosen.value], [chosen.goodput.value], "o", **ring)
            brings = [p.more_gpu_h_per_day for p in line if p.more_gpu_h_per_day is not None]
            more.plot(at[1:], [one.value for one in brings], "o", ms=3, **style)
            _band(more, at[1:], brings, colour)
        more.axhline(sweep.gpu_h_per_day, color="#24292f", lw=0.8, ls=":")
        more.annotate(
            "cost", (more.get_xlim()[0], sweep.gpu_h_per_day), xytext=(2, 2),
            textcoords="offset points", fontsize=8, color="#57606a",
        )  # fmt: skip
        goodput.set_title("goodput: useful share of paid GPU time")
        more.set_title("useful GPU-h per day added by one more")
        for axes in drawn.axes:
            axes.set_xlabel(f"{sweep.name} (with {sweep.beside})")
            axes.xaxis.get_major_locator().set_params(integer=True)
        drawn.figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return drawn.svg


def _distinct_lines(sweep: Sweep) -> list[tuple[list[str], tuple[SweepPoint, ...]]]:
    """Return each distinct line once, with the names of all arms that share it."""
    lines: list[tuple[list[str], tuple[SweepPoint, ...]]] = []
    for name, line in sweep.lines.items():
        same = next((names for names, other in lines if other == line), None)
        if same is None:
            lines.append(([name], line))
        else:
            same.append(name)
    return lines


def _band(axes: Any, at: list[int], intervals: list[Interval], colour: str) -> None:
    for x, one in zip(at, intervals, strict=True):
        draw_interval(axes, x, one, color=colour, lw=1.2, alpha=0.5)
