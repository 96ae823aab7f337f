"""Findings and plots of simulated runs on a bandwidth trace."""

from collections.abc import Iterator
from typing import Any

from torchloom_core.lab.evaluate.allreduce_results import (
    AllreduceArm,
    AllreduceRunResult,
    AllreduceSimulation,
)
from torchloom_core.lab.evaluate.report import wording
from torchloom_core.lab.evaluate.report.figure import KIND_COLOUR, SERIES, canvas
from torchloom_core.lab.learning.forecast_score import Interval

_ROW_INCH = 0.3
_BYTES_PER_MBIT = 125_000.0


def ranked(simulation: AllreduceSimulation) -> list[AllreduceArm]:
    """Return the arms by progress per hour, the best first."""
    return sorted(simulation.arms, key=lambda arm: (-arm.progress_per_h.value, arm.name))


def findings(simulation: AllreduceSimulation) -> Iterator[str]:
    """Yield the findings, one sentence each."""
    for arm in simulation.arms:
        if arm.kind == "candidate":
            yield _candidate(arm, simulation)
    named = {arm.name: arm for arm in simulation.arms}
    best = named[simulation.reference]
    yield (
        f"The best static mode in hindsight is {best.name.removeprefix('static ')}: "
        f"{_takes(best, simulation)}. Arms by progress per hour: "
        f"{', '.join(arm.name for arm in ranked(simulation))}."
    )
    oracle = named[simulation.oracle]
    if oracle.speedup is not None and not oracle.speedup.value > 1:
        yield (
            "The oracle, with the best mode in every step, is no faster than that: on this trace "
            "switching gains nothing."
        )


def warnings(simulation: AllreduceSimulation) -> Iterator[str]:
    """Yield quarantined or silent plugins, alerts and unfinished arms, one sentence each."""
    for arm in simulation.arms:
        for name, why in arm.quarantined.items():
            yield f"{arm.name}: {name} was quarantined: {why}"
        for name, count in arm.silent.items():
            yield f"{arm.name}: {name} gave no forecast in {count} of {len(simulation.seeds)} runs"
        for text in arm.operations.alerts:
            yield f"alert of {arm.name}: {text}"
        if arm.time_s is None:
            yield (
                f"{arm.name} was stopped before it reached {_goal(simulation)}; its progress per "
                f"hour covers the time until then"
            )


def in_modes(arm: AllreduceArm) -> str:
    """Return the share of time per mode, the largest first: ``int8 60 %, none 40 %``."""
    shares = sorted(arm.in_mode.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{mode} {share:.0%}" for mode, share in shares if share > 0)


def times(interval: Interval | None) -> str:
    """Return a speedup as ``1.31 [1.28, 1.34]``."""
    return "" if interval is None else wording.estimate(interval, 3)


def _candidate(arm: AllreduceArm, simulation: AllreduceSimulation) -> str:
    if arm.decisions == 0:
        text = f"{arm.name} took no action: {_takes(arm, simulation)}"
    else:
        text = f"{arm.name} {_relation(arm.speedup, simulation)}: {_takes(arm, simulation)}"
    if arm.to_oracle is not None:
        text += f", {arm.to_oracle:.0%} of the gain of {simulation.oracle}"
    text += f". It switched {arm.switches:.3g} times per run; time per mode: {in_modes(arm)}"
    if arm.operations.denied:
        text += f"; denied by {wording.counts(arm.operations.denied)}"
    return f"{text}."


def _relation(speedup: Interval | None, simulation: AllreduceSimulation) -> str:
    """Return a paired ratio in words; faster or slower requires an interval that excludes 1."""
    if speedup is None:
        return "is the best"
    word = "is not clearly different from"
    if speedup.low is None or speedup.high is None:
        word = "has too few seeds for a comparison with"
    elif speedup.low > 1:
        word = "is faster than"
    elif speedup.high < 1:
        word = "is slower than"
    return (
        f"{word} {simulation.reference} (speedup {times(speedup)} in progress per hour; ahead in "
        f"{speedup.ahead} runs, behind in {speedup.behind})"
    )


def _takes(arm: AllreduceArm, simulation: AllreduceSimulation) -> str:
    if arm.time_s is None:
        return f"{wording.estimate(arm.progress_per_h, 0)} steps of mode none per hour"
    return f"{wording.estimate(arm.time_s, 1)} s for {_goal(simulation)}"


def _goal(simulation: AllreduceSimulation) -> str:
    return f"the progress of {simulation.progress:,.6g} steps of mode none"


# --- plots of the first seed ---


def progress_plot(simulation: AllreduceSimulation) -> str:
    """Return the progress of every arm over time."""
    runs = _first_runs(simulation)
    with canvas(9.6, 3.6) as drawn:
        axes = drawn.axes
        for arm, colour in zip(ranked(simulation), SERIES * len(runs), strict=False):
            at_s, progress = zip(*runs[arm.name].curve, strict=True)
            width = 2.2 if arm.kind == "candidate" else 1.3
            dash = "--" if arm.kind == "oracle" else "-"
            axes.plot(at_s, progress, color=colour, lw=width, ls=dash, label=arm.name)
        axes.axhline(simulation.progress, color="#6e7781", lw=0.8, ls=":")
        axes.set(
            xlabel="seconds", ylabel="progress, steps of mode none", xlim=(0, _shown_s(simulation))
        )
        axes.legend(fontsize=9, loc="lower right")
    return drawn.svg


def mode_plot(simulation: AllreduceSimulation) -> str:
    """Return the bandwidth of the slowest link, and below it the mode of each arm."""
    runs, until_s = _first_runs(simulation), _shown_s(simulation)
    arms = ranked(simulation)[::-1]
    modes = list(simulation.arms[0].in_mode)
    colour_of = dict(zip(modes, SERIES * len(modes), strict=False))
    height = 2.2 + _ROW_INCH * len(arms)
    ratios = [1.8, _ROW_INCH * len(arms) + 0.4]
    options: dict[str, Any] = {"sharex": True, "height_ratios": ratios}
    with canvas(9.6, height, rows=2, **options) as drawn:
        link, rows = drawn.axes
        at_s, rate = _link_until(simulation, until_s)
        link.step(at_s, rate, where="post", color="#24292f", lw=1.2)
        link.set_yscale("log")
        link.set_ylabel("slowest link, Mbit/s")
        for row, arm in enumerate(arms):
            run = runs[arm.name]
            begins = [begin_s for begin_s, _ in run.modes]
            ends = [*begins[1:], run.wall_s]
            for (begin_s, mode), end_s in zip(run.modes, ends, strict=True):
                rows.barh(row, end_s - begin_s, left=begin_s, color=colour_of[mode], height=0.6)
        for mode in modes:
            rows.barh(0, 0.0, color=colour_of[mode], label=mode)
        rows.set_yticks(range(len(arms)), [arm.name for arm in arms])
        for label, arm in zip(rows.get_yticklabels(), arms, strict=True):
            label.set_color(KIND_COLOUR[arm.kind])
        rows.grid(axis="y", visible=False)
        rows.set(xlabel="seconds", xlim=(0, until_s))
        drawn.figure.legend(loc="outside upper center", ncols=8, fontsize=9, handlelength=1)
    return drawn.svg


def _first_runs(simulation: AllreduceSimulation) -> dict[str, AllreduceRunResult]:
    return {run.arm: run for run in simulation.runs if run.seed == simulation.seeds[0]}


def _shown_s(simulation: AllreduceSimulation) -> float:
    """Return the end of the time axis, which cuts off much slower static modes."""
    runs = _first_runs(simulation)
    shown = [arm.name for arm in simulation.arms if arm.kind != "baseline"]
    longest_s = max(runs[name].wall_s for name in (*shown, simulation.reference))
    return max(longest_s, simulation.span_s)


def _link_until(simulation: AllreduceSimulation, until_s: float) -> tuple[list[float], list[float]]:
    """Return the bandwidth of the slowest link, repeated as often as the recording was."""
    passes = int(until_s // simulation.span_s) + 1
    points = [
        (number * simulation.span_s + at_s, rate / _BYTES_PER_MBIT)
        for number in range(passes)
        for at_s, rate in simulation.slowest_link
    ]
    points.append((until_s, points[-1][1]))
    return [at_s for at_s, _ in points], [rate for _, rate in points]
