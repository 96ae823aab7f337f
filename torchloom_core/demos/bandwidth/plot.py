"""Plot the bandwidth demo: loss, step time and mode of both runs over time."""

from pathlib import Path
from typing import Any

from torchloom_core.demos.bandwidth.phases import committed
from torchloom_core.demos.bandwidth.report import ArmFigures, Report
from torchloom_core.demos.bandwidth.script import SCRIPT

_COLOURS = ("#b5482e", "#1f6f8b")
_DATA_AND_AXES = ("data", "axes fraction")


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
