"""Show how the cost of watching a trace grows with its nodes and its days.

``python experiments/scale/run.py --help`` says what it takes; the README says what it found.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from rich.console import Console
from rich.table import Table

from torchloom_core.trace import Parameters, synthesize

HERE = Path(__file__).parent
INTERVAL_S = 15.0
NODES = (250, 500, 1000, 2000)
WATCHED_LONG = 1000
DAYS = (1, 2, 4)
FULL_DAYS = (8, 30)


class Size(NamedTuple):
    """How large a trace is."""

    nodes: int
    days: float


class Fit(NamedTuple):
    """What was measured as a straight line and as a power of the size.

    Attributes
    ----------
    base_s, each_s : float
        ``cpu_s = base_s + each_s * size``, by least squares of the relative errors.
    off : float
        The largest of those errors.
    exponent : float
        ``cpu_s ~ size ** exponent``, by least squares of the logarithms.
    """

    base_s: float
    each_s: float
    off: float
    exponent: float


Row = dict[str, float]


def main() -> None:
    """Watch traces of every size, one after the other, and report."""
    options = _options()
    console = Console()
    rows: list[Row] = []
    for size in _sizes(options):
        console.print(f"{size.nodes} nodes, {size.days:g} days ...", style="dim")
        rows.append(measure(size, options.folder))
    by_nodes = [row for row in rows if row["days"] == min(r["days"] for r in rows)]
    by_days = [row for row in rows if row["nodes"] == rows[-1]["nodes"]]
    _show(console, rows, by_nodes, by_days)
    save_plot(by_nodes, by_days, options.plot)
    console.print(f"plot: {options.plot}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def measure(size: Size, folder: Path) -> Row:
    """Watch a trace of this size, which is made first if it is not there, in a process."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{size.nodes}-nodes-{size.days:g}-days.tltrace"
    if not trace.exists():
        parameters = Parameters(nodes=size.nodes, days=size.days, interval_s=INTERVAL_S)
        synthesize(trace, parameters)
    command = [sys.executable, str(HERE / "watch.py"), str(trace), "--tick-s", str(INTERVAL_S)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout)
    return row


def fit(sizes: Sequence[float], cpu_s: Sequence[float]) -> Fit:
    """Fit a straight line and a power law."""
    size, took_s = np.array(sizes), np.array(cpu_s)
    each_s, base_s = np.polyfit(size, took_s, 1, w=1 / took_s)
    off = np.abs((base_s + each_s * size) / took_s - 1).max()
    exponent, _ = np.polyfit(np.log(size), np.log(took_s), 1)
    return Fit(float(base_s), float(each_s), float(off), float(exponent))


def save_plot(by_nodes: Sequence[Row], by_days: Sequence[Row], path: Path) -> None:
    """Draw time against nodes and days, and peak memory against days."""
    plot = Plot(figsize=(12, 3.8), layout="constrained")
    nodes_axes, days_axes, memory_axes = plot.subplots(1, 3)
    _draw_time(nodes_axes, by_nodes, "nodes")
    _draw_time(days_axes, by_days, "days")
    days = [row["days"] for row in by_days]
    peaks = [row["peak_rss_mib"] for row in by_days]
    memory_axes.plot(days, peaks, "o")
    memory_axes.set(xlabel="days", ylabel="peak RSS, MiB", ylim=(0, 1.2 * max(peaks)))
    memory_axes.set_title("memory against days", loc="left")
    plot.savefig(path, dpi=120)


def _draw_time(axes: Axes, rows: Sequence[Row], along: str) -> None:
    sizes, cpu_s = [row[along] for row in rows], [row["cpu_s"] for row in rows]
    found = fit(sizes, cpu_s)
    ends = np.array([0.0, max(sizes)])
    axes.plot(sizes, cpu_s, "o")
    axes.plot(ends, found.base_s + found.each_s * ends, "--", color="black", linewidth=1)
    axes.set(xlabel=along, ylabel="CPU seconds", xlim=(0, None), ylim=(0, None))
    axes.set_title(f"time against {along}: exponent {found.exponent:.2f}", loc="left")


def _show(
    console: Console, rows: Sequence[Row], by_nodes: Sequence[Row], by_days: Sequence[Row]
) -> None:
    table = Table(title="Watching traces of 4 metrics at 15 s", title_justify="left")
    for heading in ("nodes", "days", "ticks", "CPU s", "wall s", "ms a node-day", "peak RSS MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        node_days = row["nodes"] * row["days"]
        table.add_row(
            f"{row['nodes']:,.0f}",
            f"{row['days']:g}",
            f"{row['ticks']:,.0f}",
            f"{row['cpu_s']:.1f}",
            f"{row['wall_s']:.1f}",
            f"{1000 * row['cpu_s'] / node_days:.1f}",
            f"{row['peak_rss_mib']:.0f}",
        )
    console.print(table)
    for along, chosen in (("nodes", by_nodes), ("days", by_days)):
        found = fit([row[along] for row in chosen], [row["cpu_s"] for row in chosen])
        console.print(
            f"CPU s = {found.base_s:.3g} + {found.each_s:.3g} x {along}, within {found.off:.1%}; "
            f"~ {along} ^ {found.exponent:.2f}"
        )
    first, last = (one["peak_rss_mib"] for one in (by_days[0], by_days[-1]))
    console.print(f"peak RSS, longest / shortest: {last / first:.3f}")


def _sizes(options: argparse.Namespace) -> list[Size]:
    if options.tiny:
        return [Size(4, 0.01), Size(8, 0.01), Size(8, 0.02)]
    days = DAYS + FULL_DAYS if options.full else DAYS
    across = [Size(nodes, DAYS[0]) for nodes in NODES]
    return across + [Size(WATCHED_LONG, length) for length in days[1:]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Show how the cost of watching a trace grows with its nodes and days."
    )
    parser.add_argument("--full", action="store_true", help="8 and 30 days too; 0.8 GB of traces")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build/scale"),
        help="where traces are, or are made [build/scale]",
    )
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--plot", type=Path, default=HERE / "scale.png", help="where to draw it")
    parser.add_argument(
        "--tiny", action="store_true", help="see that it runs; what it measures says nothing"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
