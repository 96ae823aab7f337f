"""The result as a table, a file and a plot."""

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from experiments.pipeline_kills.judge import Kill, Result
from torchloom_core.cli.capability import console


def write(result: Result, path: Path, asked: dict[str, Any]) -> None:
    """Write the result as JSON, and its plot beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folders = ("out", "keep")  # of one machine
    options = {name: str(value) for name, value in asked.items() if name not in folders}
    text = msgspec.json.encode({"asked": options, "result": result})
    path.write_bytes(msgspec.json.format(text, indent=1))
    _plot(result, path.with_suffix(".png"))


def show(result: Result) -> None:
    """Print the table: a line for each phase, and for each answer."""
    table = Table(
        "killed in, answered by", "kills", "known, ms", "stall, ms", "stall, longest", "problems"
    )
    for name in ("phase", "answer"):
        for value, kills in _by(name, result.kills).items():
            table.add_row(value, *_cells(kills))
        table.add_section()
    table.add_row("all", *_cells(result.kills))
    console().print(table)
    console().print(
        f"{result.steps} steps of {1000 * result.step_s:.0f} ms: {result.lost_steps} committed "
        f"steps lost, {result.other_losses} losses and {result.other_weights} layers that "
        "differ from the undisturbed run's"
    )


def _by(name: str, kills: list[Kill]) -> dict[str, list[Kill]]:
    found = defaultdict(list)
    for kill in kills:
        found[getattr(kill, name)].append(kill)
    return found


def _cells(kills: list[Kill]) -> list[str]:
    good = [kill for kill in kills if not kill.problem]
    known = [1000 * kill.known_s for kill in good]
    stall = [1000 * kill.stall_s for kill in good]
    problems = ", ".join(sorted({kill.problem for kill in kills if kill.problem}))
    return [
        str(len(kills)),
        _text(known, statistics.median),
        _text(stall, statistics.median),
        _text(stall, max),
        problems or "0",
    ]


def _text(values: list[float], of: Callable[[list[float]], float]) -> str:
    return f"{of(values):.0f}" if values else ""


def _plot(result: Result, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    phases = _by("phase", [kill for kill in result.kills if not kill.problem])
    for place, (name, label) in zip(
        axes,
        (("known_s", "until all survivors know"), ("stall_s", "last commit to next")),
        strict=True,
    ):
        values = [[1000 * getattr(kill, name) for kill in kills] for kills in phases.values()]
        place.boxplot(values, tick_labels=list(phases))
        place.set_ylabel(f"{label}, ms")
        place.set_ylim(bottom=0)
        place.tick_params(axis="x", rotation=40)
    figure.savefig(path, dpi=120)
