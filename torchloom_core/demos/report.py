"""The results of the demo: a table, a plot, and a summary in JSON."""

from collections.abc import Callable
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from torchloom_core.demos.act import Act
from torchloom_core.demos.scenario import Scenario, counters_after
from torchloom_core.demos.steplog import Measures, measure
from torchloom_core.live.kernel.actions.kinds import summary_of
from torchloom_core.live.trajectory.reader import read_epochs

_MARKED = {"migrate": "migration", "evict": "eviction"}
"""Actions that the plot marks, and their labels."""

_YES = {True: "yes", False: "no"}
_STORY_KINDS = ("verdict", "outcome", "notice", "policy_failed")

_ROWS: tuple[tuple[str, Callable[[Measures], str]], ...] = (
    ("failed steps", lambda m: str(m.failed_steps)),
    ("longest stall", lambda m: f"{m.stall_s:.2f} s"),
    ("steps done", lambda m: str(m.steps)),
    ("step counter continuous", lambda m: _YES[m.continuous]),
    ("replica groups at the end", lambda m: str(m.groups_at_end)),
    ("time", lambda m: f"{m.seconds:.1f} s"),
    ("final loss", lambda m: f"{m.loss:.4f}"),
    ("final weights bitwise equal", lambda m: _YES[m.weights_equal]),
)


def measures_of(act: Act) -> Measures:
    """Measure an act from its trainers' logs."""
    survivors = [act.logs[group] for group in act.scenario.survivors]
    finishers = [log for log in act.logs.values() if log.end and not log.end["drained"]]
    return measure(survivors, finishers)


def story_of(act: Act) -> list[dict[str, Any]]:
    """Return the Weaver's decisions and outcomes from its trajectory, oldest first."""
    return [
        {"t": line.ts_ns / 1e9, "tag": line.kind, **msgspec.json.decode(line.body)}
        for record in read_epochs(act.processes.trajectory)
        for line in record.lines()
        if line.io == "out" and line.kind in _STORY_KINDS
    ]


def _decisions(act: Act) -> list[dict[str, Any]]:
    """Return the story without notices, and without the outcomes of alerts: they repeat them."""
    return [
        entry
        for entry in story_of(act)
        if entry["tag"] != "notice"
        and (entry["tag"] != "outcome" or entry["action"]["kind"] != "alert")
    ]


def describe(entry: dict[str, Any]) -> str:
    """Return an entry of the story as one line."""
    match entry["tag"]:
        case "verdict":
            word = "granted" if entry["granted"] else f"not granted ({entry['rule']})"
            action, reason = summary_of(entry["action"]), entry["reason"]
            # An alert's text is its reason.
            why = "" if action.endswith(reason) else f", {reason}"
            return f"{entry['policy']}: {action}: {word}{why}"
        case "outcome":
            return f"{entry['action']['kind']} is {entry['result']}: {entry['detail']}"
        case "policy_failed":
            return f"{entry['policy']} is quarantined: {entry['detail']}"
        case _:
            return str(entry["text"])


def show_table(console: Console, before: Act, after: Act) -> None:
    """Print both acts side by side, and the decisions."""
    without, with_ = measures_of(before), measures_of(after)
    scenario = after.scenario
    table = Table(title=scenario.title, title_justify="left")
    table.add_column("")
    table.add_column("torchft alone", justify="right")
    table.add_column("with torchLoom", justify="right", style="bold")
    for name, cell in _ROWS:
        table.add_row(name, cell(without), cell(with_))
    console.print(table)
    start = _zero_of(after)
    since = "the freeze" if scenario.freezes else "the first ECC error"
    console.print(f"\n[bold]Decisions[/] (seconds after {since})")
    lines = [(entry["t"], describe(entry)) for entry in _decisions(after)]
    if after.failed_at:
        lines.append((after.failed_at, scenario.event))
    for t, text in sorted(lines, key=itemgetter(0)):
        console.print(f"  {t - start:+6.1f} s  {text}", highlight=False)


def summary_of_acts(before: Act, after: Act) -> dict[str, Any]:
    """Return the measures of both acts and the decisions."""
    return {
        "seed": after.scenario.seed,
        "without": asdict(measures_of(before)),
        "with": asdict(measures_of(after)),
        "decisions": [describe(entry) for entry in _decisions(after)],
    }


def draw(path: Path, before: Act, after: Act) -> None:
    """Save the plot: progress of both acts, and the failing node's error counter."""
    from matplotlib.figure import Figure

    scenario = after.scenario
    panels = (2.2, 1) if scenario.freezes else (2.2, 1, 1)
    figure = Figure(figsize=(9, 2.6 + 1.2 * sum(panels)), layout="constrained")
    durations, groups, *counter = figure.subplots(len(panels), 1, sharex=True, height_ratios=panels)
    for act, label, colour in (
        (before, "torchft alone", "#b5482e"),
        (after, "with torchLoom", "#1f6f8b"),
    ):
        start = _zero_of(act)
        rows = act.logs[act.scenario.survivors[0]].steps
        times = [row["t"] - start for row in rows]
        seconds = [row["duration_s"] for row in rows]
        durations.vlines(times, 0.05, seconds, color=colour, lw=1, alpha=0.5)
        durations.plot(times, seconds, ".", color=colour, label=label, ms=4)
        groups.step(
            times, [row["participants"] for row in rows], color=colour, lw=1.5, where="post"
        )
        failed = [row for row in rows if not row["committed"]]
        durations.plot(
            [row["t"] - start for row in failed],
            [row["duration_s"] for row in failed],
            "x",
            color=colour,
            ms=10,
            mew=2.5,
            zorder=10,
            label=f"failed step ({label})" if failed else None,
        )
    _mark_decisions(durations, after)
    durations.set_yscale("log")
    durations.set_ylim(0.05, 12)
    durations.set_ylabel("step time (s)")
    durations.set_title(scenario.plot_title, loc="left")
    durations.legend(loc="upper left", frameon=False, fontsize=9)
    groups.set_ylabel("replica groups\nin the step")
    groups.set_yticks(range(5))
    groups.set_ylim(0, 4.4)
    for axes in counter:
        _draw_counter(axes, scenario)
    last = (counter or [groups])[-1]
    last.set_xlabel(f"seconds after {'the freeze' if scenario.freezes else 'the first ECC error'}")
    failed_s = 0.0 if scenario.freezes else scenario.degrades_for_s
    last.set_xlim(-8, failed_s + 12)
    for axes in (durations, groups, *counter):
        axes.axvline(failed_s, color="black", ls=":", lw=1)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _zero_of(act: Act) -> float:
    """Return the act's time zero: the freeze or the first ECC error."""
    return (act.failed_at if act.scenario.freezes else act.degraded_at) or 0.0


def _draw_counter(axes: Any, scenario: Scenario) -> None:
    span = [tenth / 10 for tenth in range(round(scenario.degrades_for_s * 10) + 1)]
    axes.plot(
        [-10.0, *span],
        [counters_after(max(0.0, s))["gpu_ecc_corrected_total"] for s in (-1.0, *span)],
        color="#444444",
    )
    axes.set_ylabel(f"corrected ECC errors\non {scenario.failing.node}")


def _mark_decisions(axes: Any, act: Act) -> None:
    start = _zero_of(act)
    marks = [((act.failed_at or start) - start, act.scenario.event)]
    for entry in story_of(act):
        name = _MARKED.get(entry.get("action", {}).get("kind", ""))
        if name and entry["tag"] == "verdict" and entry["granted"]:
            marks.append((entry["t"] - start, f"{name} granted"))
        elif name and entry["tag"] == "outcome":
            marks.append((entry["t"] - start, f"{name} {entry['result']}"))
    for number, (x, text) in enumerate(sorted(marks)):
        axes.axvline(x, color="#777777", ls=":", lw=1)
        axes.annotate(
            text,
            (x, 0.93 - 0.08 * number),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
