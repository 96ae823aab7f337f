"""The figures as a table, a JSON file and a plot."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from figure import Figure
from matplotlib.figure import Figure as Plot
from rich.console import Console
from rich.table import Column, Table

_SAVED = ("name", "what", "limit", "bound", "met", "ratio", "ratios", "numbers")
_VERDICTS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}


def show(figures: Sequence[Figure], machine: Mapping[str, str], *, judged: bool = True) -> None:
    """Print the table; with ``judged`` also whether each limit is met."""
    headings = ["figure", "ratio of what to what", "limit", "ratio", "range"] + ["met"] * judged
    verdicts = Table(*headings, title="torchLoom: speed, as ratios", title_justify="left")
    measured = Table(
        "figure",
        Column("measured", no_wrap=True),
        Column("median", justify="right", no_wrap=True),
        title="Behind them, medians of the repeats",
        title_justify="left",
    )
    for figure in figures:
        row = [
            f"[bold]{figure.name}[/bold]",
            figure.what,
            "none" if figure.limit is None else f"{figure.bound} {figure.limit:g}",
            f"[bold]{figure.ratio:.3g}[/bold]",
            f"{min(figure.ratios):.3g} to {max(figure.ratios):.3g}, {len(figure.ratios)} times",
        ]
        verdicts.add_row(*row, *[_VERDICTS[figure.met]] * judged)
        for name, value in figure.numbers.items():
            measured.add_row(figure.name, name, _readable(value))
        measured.add_section()
    console = Console()
    console.print(verdicts)
    console.print(measured)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")


def save_json(figures: Sequence[Figure], machine: Mapping[str, str], path: Path) -> None:
    """Write everything that was measured to ``path``."""
    found = {
        "machine": machine,
        "figures": [{name: getattr(figure, name) for name in _SAVED} for figure in figures],
    }
    path.write_text(json.dumps(found, indent=2) + "\n")


def save_plot(figures: Sequence[Figure], path: Path) -> None:
    """Draw how much of each limit is used; a dot for each repeat."""
    plot = Plot(figsize=(8, 1 + 0.7 * len(figures)), layout="constrained")
    axes = plot.add_subplot()
    for row, figure in enumerate(figures):
        used = _used(figure, figure.ratio)
        axes.barh(row, used, height=0.6, color="tab:green" if figure.met else "tab:red", alpha=0.6)
        dots = [_used(figure, ratio) for ratio in figure.ratios]
        axes.plot(dots, [row] * len(dots), "o", color="black", markersize=4, alpha=0.6)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    labels = [f"{f.name}\n{f.ratio:.3g}, {f.bound} {f.limit:g}" for f in figures]
    axes.set_yticks(range(len(figures)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("share of the limit that is used (left of the line is met)")
    axes.set_title("Speed: median of the repeats, a dot for each", loc="left")
    plot.savefig(path, dpi=120)


def _readable(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _used(figure: Figure, ratio: float) -> float:
    return figure.limit / ratio if figure.bound == "at least" else ratio / figure.limit
