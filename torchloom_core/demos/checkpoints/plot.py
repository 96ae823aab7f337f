"""The plot of the checkpoints demo: progress with saves and failures, and the intervals."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from torchloom_core.demos.checkpoints.incidents import Save
from torchloom_core.demos.checkpoints.report import Report
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE, TIERS

_COLOURS = {MEMORY: "#1f6f8b", PATH: "#7a9a3a", REMOTE: "#b5482e"}
_MARKERS = {MEMORY: ("o", 4), PATH: ("s", 6), REMOTE: ("D", 8)}
_TICKS_S = (1.0, 2.0, 5.0, 10.0, 20.0)
_DATA_AND_AXES = ("data", "axes fraction")


def draw(path: Path, report: Report) -> None:
    """Save the plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    steps, intervals = panels = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    zero = report.zero
    starts = list(_starts(report.ranks[0].steps))
    for rows in starts:
        times = [row["t"] - zero for row in rows]
        steps.plot(times, [row["step"] for row in rows], color="#444444", lw=1.2)
    for tier in TIERS:
        points = [_place(save, starts, zero) for save in report.saves if save.tier == tier]
        marker, size = _MARKERS[tier]
        style = {"marker": marker, "ms": size, "color": _COLOURS[tier], "lw": 0}
        steps.plot(*_columns(points), label=f"saved in {tier}", zorder=3, **style)
        own = [(row["t"] - zero, row["every_s"][tier]) for rows in starts for row in rows]
        line = {"color": _COLOURS[tier], "lw": 1.8, "label": tier}
        intervals.step(*_columns(own), where="post", **line)
    for number, one in enumerate(report.incidents, 1):
        at = one.before.at - zero
        for axes in panels:
            axes.axvspan(at, one.back_at - zero, color="#000000", alpha=0.07, lw=0)
            axes.axvline(at, color="black", lw=1)
        losses = (one.before.step - one.lost_steps_by_remote, one.from_step)
        for step, colour, width in zip(losses, ("#b5482e", "black"), (1.5, 4.0), strict=True):
            steps.vlines(at, step, one.before.step, color=colour, lw=width, zorder=2)
            steps.hlines(step, at, one.back_at - zero, color=colour, ls=":", lw=1)
        text = f"{number}: {one.text}\nfrom {', '.join(one.tiers)}"
        steps.annotate(text, (at, 1.01), xycoords=_DATA_AND_AXES, fontsize=8)
    steps.set_ylabel("step")
    steps.legend(loc="lower right", frameon=False, fontsize=9)
    intervals.set_yscale("log")
    intervals.set_yticks(_TICKS_S, [f"{tick:g}" for tick in _TICKS_S], minor=False)
    intervals.set_yticks([], minor=True)
    intervals.set_ylim(0.8, 45)
    intervals.set_ylabel("interval (s)")
    intervals.legend(loc="upper left", frameon=False, fontsize=9, ncols=3)
    intervals.set_xlabel("s since the first step; grey: from a failure until all ranks train again")
    title = "Lost at a failure: black, and with the tier remote alone red"
    figure.suptitle(title, x=0.02, ha="left")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _starts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps of each process of a rank."""
    for _, own in groupby(rows, key=lambda row: row["pid"]):
        yield list(own)


def _place(save: Save, starts: list[list[dict[str, Any]]], zero: float) -> tuple[float, float]:
    """Return when the state of a checkpoint was copied, and its step."""
    step = save.folder.step
    made = [row["t"] for rows in starts for row in rows if row["step"] == step]
    before = [t for t in made if t <= save.at]
    return (max(before, default=save.at) - zero, step)


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
