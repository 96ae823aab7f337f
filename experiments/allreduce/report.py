"""The tables and plots of a run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.allreduce.arm import TUNER, Played
from experiments.allreduce.judge import Check, Phased, curve, fixed_loss, time_to
from experiments.allreduce.schedule import Schedule


def show(
    trials: Sequence[Played],
    table: Sequence[Phased],
    checks: Sequence[Check],
    schedule: Schedule,
    fixed_by_s: float,
    console: Console,
) -> None:
    """Print step times, times to the fixed loss, and which requirements are met."""
    steps = Table(title="median step, s", title_justify="left")
    steps.add_column("arm")
    for phase in schedule:
        steps.add_column(phase.name, justify="right")
    for arm in dict.fromkeys(row.arm for row in table):
        cells = []
        for row in table:
            if row.arm == arm:
                mode = f" {row.mode}" if arm == TUNER else ""
                cells.append("" if math.isnan(row.step_s) else f"{row.step_s:.3f}{mode}")
        steps.add_row(arm, *cells)
    console.print(steps)

    seeds = sorted({each.seed for each in trials})
    times = Table(title="s to the fixed loss of the seed", title_justify="left")
    times.add_column("arm")
    losses = {seed: fixed_loss(trials, seed, fixed_by_s) for seed in seeds}
    for seed, loss in losses.items():
        times.add_column(f"{seed}: {loss:.3f}", justify="right")
    for arm in dict.fromkeys(each.arm for each in trials):
        found = {each.seed: each for each in trials if each.arm == arm}
        cells = []
        for seed in seeds:
            at_s = time_to(found[seed], losses[seed]) if seed in found else math.nan
            cells.append(f"{at_s:.1f}" if math.isfinite(at_s) else "not reached")
        times.add_row(arm, *cells)
    console.print(times)
    for check in checks:
        word = "met" if check.holds else "not met"
        console.print(f"{word}: {check.text}", markup=False, soft_wrap=True)


def ideal_switcher(
    table: Sequence[Phased], quality: Mapping[str, float], schedule: Schedule
) -> str:
    """Return the gain of an ideal switcher, which uses the best mode of each phase at once.

    Progress is quality over step time, 1 of a mode that ``quality`` does not name, as the policy
    has it; the time is that until the best static mode's progress at the end of the schedule is
    reached.
    """
    speed = {
        (row.arm, row.phase): quality.get(row.arm, 1.0) / row.step_s
        for row in table
        if row.arm != TUNER and row.step_s > 0
    }
    arms = [
        arm
        for arm in dict.fromkeys(arm for arm, _ in speed)
        if all((arm, n) in speed for n in range(len(schedule)))
    ]
    if not arms:
        return "ideal switcher: need a static mode that has a step in every phase"
    lasts_s = [phase.end_s - phase.start_s for phase in schedule]
    static = {arm: sum(speed[arm, n] * span_s for n, span_s in enumerate(lasts_s)) for arm in arms}
    goal, now, spent_s, chosen = max(static.values()), 0.0, 0.0, []
    total = 0.0
    for number, span_s in enumerate(lasts_s):
        best = max(arms, key=lambda arm: speed[arm, number])
        chosen.append(best)
        total += speed[best, number] * span_s
        if now < goal:
            needs_s = min(span_s, (goal - now) / speed[best, number])
            now += speed[best, number] * needs_s
            spent_s += needs_s
    ratio = sum(lasts_s) / spent_s
    best = max(static, key=lambda arm: static[arm])
    return (
        f"ideal switcher ({', '.join(chosen)}): {ratio:.2f} times as fast to where {best}, the "
        f"best static mode, ends, and {total / goal:.2f} times its progress"
    )


def draw_loss(trials: Sequence[Played], schedule: Schedule, path: Path) -> None:
    """Draw the loss over time of every arm, all seeds, on its phases."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for number, phase in enumerate(schedule):
        axes.axvspan(phase.start_s, phase.end_s, color="0.5", alpha=0.06 + 0.1 * (number % 2), lw=0)
        if len(schedule) <= 8:  # more are no phases to read, but a curve
            middle = (phase.start_s + phase.end_s) / 2
            axes.text(middle, 1.01, phase.name, ha="center", transform=axes.get_xaxis_transform())
    colours: dict[str, str] = {}
    for each in trials:
        points = curve(each)
        (line,) = axes.plot(
            [at_s for at_s, _ in points],
            [loss for _, loss in points],
            color=colours.get(each.arm),
            label=None if each.arm in colours else each.arm,
            lw=2.5 if each.arm == TUNER else 1.2,
        )
        colours[each.arm] = line.get_color()
    axes.set(xlabel="s since the first step", ylabel="loss, nats a character")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def draw_steps(table: Sequence[Phased], schedule: Schedule, path: Path) -> None:
    """Draw the median step of every arm in each phase."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    arms = list(dict.fromkeys(row.arm for row in table))
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        rows = [row for row in table if row.arm == arm]
        at = [row.phase + (place - (len(arms) - 1) / 2) * width for row in rows]
        axes.bar(at, [row.step_s for row in rows], width, label=arm)
    axes.set_xticks(range(len(schedule)), [phase.name for phase in schedule])
    axes.set(ylabel="median step, s", yscale="log")
    axes.legend(fontsize="small", ncols=len(arms))
    axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=110)
