"""A preview as a table and as a plot."""

import textwrap
from pathlib import Path
from typing import Any

from rich.table import Table

from torchloom_core.capabilities.standby_task_result import saved_figure, table_of
from torchloom_core.live.trajectory.preview import WITH, WITHOUT, Preview
from torchloom_core.wire.preview import Arm

_ARMS: tuple[tuple[Arm, str, str], ...] = (
    ("control", WITHOUT, "#777777"),
    ("change", WITH, "#1f6f8b"),
)
_WIDTH = 100
"""Characters of a line below the title."""


def table(seen: Preview) -> Table:
    """Return the results, one sentence per row."""
    title = f"preview on {seen.worker or 'no worker'}, against a control without the change"
    of_step = seen.setup.of_step if seen.setup else -1
    began = [("from", f"step {of_step} of the run")] if of_step >= 0 else []
    return table_of(title, [*began, *seen.words()])


def draw(path: Path, seen: Preview) -> None:
    """Save a plot: the loss of both arms, each with its band, and the extrapolated loss."""
    with saved_figure(path, 9, 5.4) as figure:
        axes = figure.subplots()
        for arm, label, colour in _ARMS:
            _draw_arm(axes, seen, arm, label, colour)
        axes.set_xlabel("step from the newest state")
        axes.set_ylabel("loss: mean of all pairs, shaded min to max")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        notes = [f"{name}: {text}" for name, text in seen.words() if name in ("verdict", "warning")]
        lines = [line for text in notes for line in textwrap.wrap(text, _WIDTH)]
        axes.set_title("\n".join(lines), loc="left", fontsize=9, parse_math=False)
        figure.suptitle(f"Preview of {seen.change}", x=0.02, ha="left", parse_math=False)


def _draw_arm(axes: Any, seen: Preview, arm: Arm, label: str, colour: str) -> None:
    band = seen.band(arm)
    steps = [point.step for point in band]
    axes.plot(steps, [point.mean for point in band], color=colour, lw=1.8, label=label)
    low, high = [point.least for point in band], [point.most for point in band]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    ahead = seen.judged.ahead if seen.judged else None
    spread = (ahead.control if arm == "control" else ahead.change) if ahead else None
    if ahead is not None and spread is not None:
        least, median, most = spread
        bars = [[median - least], [most - median]]
        axes.errorbar([ahead.steps], [median], bars, color=colour, fmt="o", ms=4, capsize=4)
