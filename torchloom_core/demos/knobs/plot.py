"""Plot the knobs demo: loss, learning rate and bytes sent by every group."""

import statistics
from pathlib import Path
from typing import Any

from torchloom_core.demos.knobs.report import Report
from torchloom_core.demos.knobs.script import VICTIM

_COLOURS = ("#1f6f8b", "#b5482e", "#7a9a3a")
_WIDTHS = (5.0, 3.0, 1.2)
"""The lines overlap: each group is drawn thinner than the one before."""
_NEIGHBOURS = 3
_DATA_AND_AXES = ("data", "axes fraction")


def draw(path: Path, report: Report) -> None:
    """Save the plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(2.4, 1, 1))
    loss, rate, sent = panels
    for number, (group, log) in enumerate(report.logs.items()):
        colour, width = _COLOURS[number], _WIDTHS[number]
        for part, rows in enumerate(_incarnations(log.steps)):
            steps = [row["step"] for row in rows]
            own = {"color": colour, "drawstyle": "steps-pre", "lw": width}
            label = group if part == 0 else None
            losses = [row["loss"] for row in rows]
            loss.plot(steps, losses, color=colour, lw=0.7, alpha=0.35)
            loss.plot(steps, _smooth(losses), color=colour, lw=1.8, label=label)
            rate.plot(steps, [row["knobs"]["lr"] for row in rows], **own)
            sent.plot(steps, [row["sent_bytes"] / 1000 for row in rows], **own)
    loss.set_yscale("log")
    loss.set_ylabel("loss of the group's samples")
    figure.suptitle("Knobs that change on every group at the same step", x=0.02, ha="left")
    loss.legend(loc="lower left", frameon=False, fontsize=9)
    rate.set_yscale("log")
    rate.set_ylabel("learning rate")
    sent.set_ylabel("sent per step (kB)")
    sent.set_ylim(bottom=0)
    sent.set_xlabel("step")
    _mark(panels, report)
    _name_modes(sent, report)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _incarnations(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the committed steps without gaps: one list per incarnation of the group."""
    parts: list[list[dict[str, Any]]] = [[]]
    for row in rows:
        if row["committed"]:
            if parts[-1] and row["step"] > parts[-1][-1]["step"] + 1:
                parts.append([])
            parts[-1].append(row)
    return parts


def _mark(panels: Any, report: Report) -> None:
    marks = [
        (min(landing.last_without.values()), f"{change.text}{' (guard)' * (change.by == 'guard')}")
        for change, landing in zip(report.changes, report.landings, strict=True)
        if landing.last_without
    ]
    for landing in report.landings:
        marks += [(step, f"{group} is back") for group, step in landing.inherited.items()]
    for axes in panels:
        for step, _ in marks:
            axes.axvline(step, color="#777777", ls=":", lw=1)
        axes.axvline(_killed_at_step(report), color="black", lw=1)
    for step, text in marks:
        panels[0].annotate(text, (step, 1.01), xycoords=_DATA_AND_AXES, rotation=45, fontsize=9)
    panels[0].annotate(
        f"kill -9 {VICTIM.group}",
        (_killed_at_step(report), 0.03),
        xycoords=_DATA_AND_AXES,
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def _name_modes(axes: Any, report: Report) -> None:
    """Label each change of mode of the first group."""
    rows = [row for row in next(iter(report.logs.values())).steps if row["committed"]]
    mode = ""
    for row in rows:
        if row["knobs"]["compression"] != mode:
            mode = row["knobs"]["compression"]
            axes.annotate(mode, (row["step"], 0.05), xycoords=_DATA_AND_AXES, fontsize=9)


def _smooth(values: list[float]) -> list[float]:
    """Return the moving median."""
    return [
        statistics.median(values[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1])
        for i in range(len(values))
    ]


def _killed_at_step(report: Report) -> int:
    """Return the victim's last step before it was killed."""
    rows = report.logs[VICTIM.group].steps
    return max((row["step"] for row in rows if row["t"] <= report.killed_at), default=0)
