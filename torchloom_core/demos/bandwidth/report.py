"""The results of the bandwidth demo: a table, a plot, and the checks."""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchloom_core.demos.bandwidth.phases import (
    SCRIPT,
    SETTLE_STEPS,
    TRAINING,
    Choice,
    PhaseFigures,
    choices,
    committed,
    phases_of,
    quality_of_modes,
    smooth_loss,
)
from torchloom_core.demos.folder import show_promises
from torchloom_core.demos.steplog import Logs, StepLog, differences, failed_steps

_LEGEND = (
    f"\n[dim]step: median after the first {SETTLE_STEPS} steps of the phase; mode: each with at "
    f"least a tenth of the steps; progress: quality of a step ({TRAINING.config}) over its time, "
    "in the main mode of a phase's second half[/]\n"
)
_MOST_OF_A_SLOW_STEP = 0.5
_MOST_OF_A_QUICK_STEP = 1.25
_LEAST_OF_BEST_PROGRESS = 0.9
_COLOURS = ("#b5482e", "#1f6f8b")
_DATA_AND_AXES = ("data", "axes fraction")


@dataclass(frozen=True)
class ArmFigures:
    """Measures of one act; ``began`` has the start of each phase, and the end of the last."""

    title: str
    links: str
    logs: Logs
    began: list[float]

    @property
    def log(self) -> StepLog:
        """The step log of the first group; all groups make the same steps."""
        return next(iter(self.logs.values()))

    @cached_property
    def phases(self) -> list[PhaseFigures]:
        """The figures of each phase of the script."""
        return phases_of(self.log, self.began)

    @cached_property
    def losses(self) -> list[tuple[float, float]]:
        """Seconds since the start of the first phase, and smoothed loss, of each step."""
        rows = committed(self.log, self.began[0], self.began[-1])
        times = (row["t"] - self.began[0] for row in rows)
        return list(zip(times, smooth_loss(rows), strict=True))

    def seconds_to(self, loss: float) -> float:
        """Return the time until the loss was at most ``loss``, seconds; inf: never."""
        return next((s for s, own in self.losses if own <= loss), math.inf)


@dataclass(frozen=True)
class Report:
    """The results of both acts."""

    without: ArmFigures
    tuned: ArmFigures

    @property
    def loss(self) -> float:
        """The final loss of the run without the tuner."""
        return self.without.losses[-1][1]

    @cached_property
    def choices(self) -> list[Choice]:
        """The tuner's choice in each phase."""
        tuned, without = ((arm.log, arm.began) for arm in (self.tuned, self.without))
        return choices(tuned, without, quality_of_modes())

    def promises(self) -> dict[str, bool]:
        """Return what the demo must show, and whether it did."""
        slow = min(range(len(SCRIPT)), key=lambda at: SCRIPT[at].mbit or math.inf)
        quick = next(at for at, phase in enumerate(SCRIPT) if phase.mbit is None)
        ratios = [
            tuned.step_s / without.step_s
            for tuned, without in zip(self.tuned.phases, self.without.phases, strict=True)
        ]
        arms = (self.without, self.tuned)
        differing = [step for arm in arms for step in differences(arm.logs)]
        failed = [
            row
            for arm in arms
            for row in failed_steps(arm.logs, arm.began[0])
            if row["t"] < arm.began[-1]  # then the groups are ended one after the other
        ]
        took, had = self.tuned.seconds_to(self.loss), self.without.seconds_to(self.loss)
        chosen = ", ".join(choice.text for choice in self.choices)
        return {
            f"step time at {SCRIPT[slow].text}: {ratios[slow]:.2f} of that without the tuner": (
                ratios[slow] <= _MOST_OF_A_SLOW_STEP
            ),
            f"step time {SCRIPT[quick].text}: {ratios[quick]:.2f} of that without the tuner": (
                ratios[quick] <= _MOST_OF_A_QUICK_STEP
            ),
            f"loss {self.loss:.3f} reached after {took:.0f} s instead of {had:.0f} s": took < had,
            f"progress per second, relative to the best measured mode: {chosen}": all(
                choice.share >= _LEAST_OF_BEST_PROGRESS for choice in self.choices
            ),
            f"steps with different knobs in two groups: {len(differing)}": not differing,
            f"failed steps: {len(failed)}": not failed,
        }


def show(console: Console, report: Report) -> None:
    """Print the phases of both acts side by side, and the checks."""
    table = Table(
        title="Links become slow, then fast again\n",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("links", no_wrap=True)
    for name in ("step, none", "steps, none", "step, tuned", "steps, tuned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mode, tuned")
    rows = zip(SCRIPT, report.without.phases, report.tuned.phases, strict=True)
    for phase, without, tuned in rows:
        table.add_row(
            f"{phase.text}, {phase.seconds:g} s",
            _milliseconds(without.step_s),
            str(without.steps),
            _milliseconds(tuned.step_s),
            str(tuned.steps),
            ", ".join(tuned.modes),
        )
    console.print(table)
    console.print(_LEGEND)
    console.print(f"{report.tuned.links}\n", highlight=False)
    show_promises(console, report.promises())


def summary_of(report: Report, seed: int) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "seed": seed,
        "links": report.tuned.links,
        "script": [asdict(phase) for phase in SCRIPT],
        "phases": {
            name: [_for_json(phase) for phase in arm.phases]
            for name, arm in (("without", report.without), ("tuned", report.tuned))
        },
        "choices": [asdict(choice) for choice in report.choices],
        "loss": report.loss,
        "promises": report.promises(),
    }


def _for_json(phase: PhaseFigures) -> dict[str, Any]:
    """Return a phase with null for NaN, which JSON lacks."""
    fields = asdict(phase)
    return fields | {"step_s": None} if math.isnan(phase.step_s) else fields


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1000:.0f} ms"


def draw(path: Path, report: Report) -> None:
    """Save the plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    loss, step = panels = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 1))
    for arm, colour in zip((report.without, report.tuned), _COLOURS, strict=True):
        times, losses = zip(*arm.losses, strict=True)
        loss.plot(times, losses, color=colour, lw=1.8, label=arm.title)
        rows = committed(arm.log, arm.began[0], arm.began[-1])
        durations = [row["duration_s"] for row in rows]
        step.plot(times, durations, color=colour, lw=0, marker=".", ms=3)
    loss.axhline(report.loss, color="#777777", ls=":", lw=1)
    loss.set_yscale("log")
    loss.set_ylabel("loss, mean of 15 steps")
    loss.legend(loc="lower left", frameon=False, fontsize=9)
    step.set_yscale("log")
    step.set_ylabel("step time (s)")
    step.set_xlabel("s since the first phase")
    _shade(panels, report.tuned)
    _name_modes(step, report.tuned)
    figure.suptitle("The same run while its links become slow, then fast again", x=0.02, ha="left")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _shade(panels: Any, arm: ArmFigures) -> None:
    edges = [at - arm.began[0] for at in arm.began]
    for number, phase in enumerate(SCRIPT):
        for axes in panels:
            if number % 2:
                axes.axvspan(edges[number], edges[number + 1], color="#000000", alpha=0.05, lw=0)
        place = (edges[number] + 0.3, 1.02)
        panels[0].annotate(phase.text, place, xycoords=_DATA_AND_AXES, fontsize=9)


def _name_modes(axes: Any, arm: ArmFigures) -> None:
    """Label each change of mode of the tuned run."""
    mode, low = "", False
    for row in committed(arm.log, arm.began[0], arm.began[-1]):
        if row["knobs"]["compression"] != mode:
            mode, low = row["knobs"]["compression"], not low
            at = row["t"] - arm.began[0]
            axes.axvline(at, color=_COLOURS[1], ls=":", lw=1)
            place = (at + 0.3, 0.9 if low else 0.8)
            axes.annotate(mode, place, xycoords=_DATA_AND_AXES, fontsize=9, color=_COLOURS[1])
