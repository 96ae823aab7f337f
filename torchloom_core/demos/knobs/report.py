"""The results of the knobs demo: tables, a plot, and the checks."""

import statistics
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchloom_core.demos.folder import show_promises
from torchloom_core.demos.knobs.changes import (
    Landing,
    RecordedChange,
    bytes_by_mode,
    failures,
    land,
    weights_are_equal,
)
from torchloom_core.demos.knobs.script import VICTIM
from torchloom_core.demos.steplog import Logs, differences
from torchloom_core.wire.requests import GUARD

_LEGEND = (
    "\n[dim]after step: each group's last step before the change; within: from the request until "
    "the last group had applied it; failed: steps of all groups that failed in that time[/]\n"
)
_MOST_OF_NONE = {"bf16": 0.51, "int8": 0.27}
_COLOURS = ("#1f6f8b", "#b5482e", "#7a9a3a")
_WIDTHS = (5.0, 3.0, 1.2)
"""The lines overlap: each group is drawn thinner than the one before."""
_NEIGHBOURS = 3
_DATA_AND_AXES = ("data", "axes fraction")


@dataclass(frozen=True)
class Report:
    """The results of a finished run, in which the victim was killed at ``killed_at``."""

    changes: list[RecordedChange]
    logs: Logs
    killed_at: float

    @cached_property
    def landings(self) -> list[Landing]:
        """Each change in the groups' step logs."""
        return [land(change, self.logs) for change in self.changes]

    @cached_property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that a group sends per step, by compression mode."""
        return bytes_by_mode(self.logs)

    @cached_property
    def failures(self) -> tuple[int, list[str]]:
        """Number of steps that failed by the kill, and the other failed steps with their errors."""
        return failures(self.logs, self.zero, self.killed_at)

    @property
    def zero(self) -> float:
        """Time zero: the request of the first change."""
        return self.changes[0].at

    def promises(self) -> dict[str, bool]:
        """Return what the demo must show, and whether it did."""
        differing = differences(self.logs)
        by_kill, others = self.failures
        steps = len({row["step"] for log in self.logs.values() for row in log.steps})
        none = self.sent_bytes.get("none", 0.0)
        landings = zip(self.changes, self.landings, strict=True)
        return {
            f"all groups applied each of the {len(self.changes)} changes at the same step": all(
                landing.is_at_one_step(self.logs) for landing in self.landings
            ),
            f"steps with different knobs in two groups: {len(differing)} of {steps}": not differing,
            f"the change during the kill landed, and {VICTIM.group} restarted with it": (
                any(
                    change.at < self.killed_at < change.at + landing.seconds
                    and VICTIM.group in landing.inherited
                    for change, landing in landings
                )
            ),
            "only the change that made the loss worse was rolled back": self._harm_was_undone(),
            f"failed steps: {by_kill} by the kill, {len(others)} by other causes": not others,
            **{
                f"bytes sent with {mode}: {self.sent_bytes.get(mode, 0) / none if none else 0:.3f} "
                "of those without compression": 0 < self.sent_bytes.get(mode, 0) <= most * none
                for mode, most in _MOST_OF_NONE.items()
            },
            "final weights bitwise equal on all groups": weights_are_equal(self.logs),
        }

    def _harm_was_undone(self) -> bool:
        worse = [i for i, change in enumerate(self.changes) if change.hurt]
        undone = [i for i, change in enumerate(self.changes) if change.by == GUARD]
        if len(worse) != 1 or undone != [worse[0] + 1]:
            return False
        return self.changes[undone[0]].result == "done"


def show(console: Console, report: Report) -> None:
    """Print the changes, the bytes sent in each mode, and the checks."""
    table = Table(
        title="Knobs set on a live run\n", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for name in ("requested", "by", "change", "outcome", "after step", "within", "failed"):
        number = name in {"requested", "within", "failed"}
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for change, landing in zip(report.changes, report.landings, strict=True):
        table.add_row(
            f"{change.at - report.zero:+.1f} s",
            change.by,
            change.text.replace(", ", "\n"),
            change.outcome,
            _steps_text(landing),
            f"{landing.seconds:.2f} s",
            str(landing.failed_steps),
        )
    console.print(table)
    console.print(_LEGEND)
    for change in report.changes:
        if change.hurt:
            console.print(f"rolled back: {change.text}, because {change.why}", highlight=False)
    none = report.sent_bytes.get("none", 0.0)
    sent = [
        f"{mode} {sent / 1000:.1f} kB" + (f" ({sent / none:.2f})" if none else "")
        for mode, sent in report.sent_bytes.items()
    ]
    console.print(f"sent by a group per step: {', '.join(sent)}\n", highlight=False)
    show_promises(console, report.promises())
    _, others = report.failures
    for failure in others:
        console.print(f"       {escape(failure)}", highlight=False)


def summary_of(report: Report, seed: int) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        "seed": seed,
        "changes": [
            {"by": change.by, "values": change.values, "outcome": change.outcome, **asdict(landing)}
            for change, landing in zip(report.changes, report.landings, strict=True)
        ],
        "sent_bytes": report.sent_bytes,
        "promises": report.promises(),
    }


def _steps_text(landing: Landing) -> str:
    """Return the groups by step: ``g0 g2: 57``, ``g1: back at 90``."""
    groups: dict[str, list[str]] = {}
    for group, step in landing.last_without.items():
        groups.setdefault(str(step), []).append(group)
    for group, step in landing.inherited.items():
        groups.setdefault(f"back at {step}", []).append(group)
    return "\n".join(f"{' '.join(names)}: {text}" for text, names in groups.items())


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
