"""Draw with matplotlib into deterministic SVG text for the page."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchloom_core.lab.learning.forecast_score import Interval

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "torchloom",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6e7781",
    "axes.labelcolor": "#24292f",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": "#57606a",
    "ytick.color": "#24292f",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7eaee",
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}

KIND_COLOUR = {
    "bound": "#afb8c1",
    "baseline": "#6e7781",
    "oracle": "#1a7f37",
    "candidate": "#0969da",
}
BUCKET_COLOUR = {
    "checkpoint": "#d4a72c",
    "lost": "#cf222e",
    "detect": "#f2a29b",
    "restart": "#e16f24",
    "migrate": "#8250df",
    "waiting": "#7d4e2d",
    "spare": "#c6cdd5",
    "repair": "#8c959f",
}
SERIES = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#0a7d91", "#bf3989", "#57606a")


class Canvas:
    """One figure and, after the ``with`` block, its SVG text."""

    svg = ""

    def __init__(self, figure: Any, axes: Any) -> None:
        self.figure = figure
        self.axes = axes


@contextmanager
def canvas(
    width: float, height: float, columns: int = 1, *, rows: int = 1, **options: Any
) -> Iterator[Canvas]:
    """Yield a figure, size in inches; ``.svg`` has its text after the block."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        drawn = Canvas(figure, figure.subplots(rows, columns, **options))
        yield drawn
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        drawn.svg = text.getvalue()[text.getvalue().index("<svg") :]


def draw_interval(
    axes: Any, at: float, of: Interval, *, upright: bool = True, scale: float = 1.0, **style: Any
) -> None:
    """Draw the interval, if there is one, as a line at a place of the other axis."""
    if of.low is not None and of.high is not None:
        ends, place = [scale * of.low, scale * of.high], [at, at]
        axes.plot(*((place, ends) if upright else (ends, place)), **style)


def draw_estimate(
    axes: Any, row: int, interval: Interval, mark: str, colour: str, scale: float = 1.0
) -> None:
    """Draw a value with its interval in a row of a plot."""
    draw_interval(axes, row, interval, upright=False, scale=scale, color=colour, lw=2.2, alpha=0.55)
    axes.plot([scale * interval.value], [row], mark, color=colour, ms=6)
