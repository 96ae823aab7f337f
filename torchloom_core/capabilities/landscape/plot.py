"""Plot a loss landscape: the line along the update, and the plane with the run's path."""

from pathlib import Path
from typing import Any

from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.landscape import Landscape

_COLOUR = "#1f6f8b"
_PATH_COLOUR = "#ffffff"


def draw(path: Path, seen: Landscape) -> None:
    """Save the plot.

    Raises
    ------
    StateError
        If the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    line, plane = figure.subplots(1, 2)
    _draw_line(line, seen)
    _draw_plane(figure, plane, seen)
    figure.suptitle("Loss around the run's newest weights", x=0.02, ha="left")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


def _draw_line(axes: Any, seen: Landscape) -> None:
    found = seen.drawn_line()
    axes.plot([share for share, _ in found], [loss for _, loss in found], color=_COLOUR, lw=1.8)
    axes.set_xlabel("share of the update")
    axes.set_ylabel("loss")
    axes.axvline(0.0, color="#777777", ls=":", lw=1)
    if seen.bend is not None and seen.bend.critical_step is not None:
        axes.axvline(seen.bend.critical_step, color="#b5482e", ls=":", lw=1)
        place = (seen.bend.critical_step, 0.97)
        axes.annotate("critical step", place, xycoords=("data", "axes fraction"), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_plane(figure: Any, axes: Any, seen: Landscape) -> None:
    import numpy as np

    if seen.plane is None:
        axes.set_axis_off()
        return
    reach = seen.plane.reach
    losses = np.ma.masked_invalid(np.array(seen.drawn_cells()))
    drawn = axes.imshow(
        losses,
        origin="lower",
        extent=(-reach, reach, -reach, reach),
        norm=_norm(losses),
        cmap="cividis",
        aspect="equal",
    )
    figure.colorbar(drawn, ax=axes, label="loss")
    if seen.plane.path:
        rows, columns, _ = zip(*seen.plane.path, strict=True)
        axes.plot(columns, rows, color=_PATH_COLOUR, lw=1.2, marker=".", ms=4)
    axes.plot([0.0], [0.0], color=_PATH_COLOUR, marker="x", ms=8, mew=2)
    along = "component" if seen.plane.path else "random direction"
    axes.set_xlabel(f"second {along}")
    axes.set_ylabel(f"first {along}")


def _norm(losses: Any) -> Any:
    """Return a logarithmic colour scale if all losses are positive and not all equal."""
    from matplotlib.colors import LogNorm

    finite = losses.compressed()
    is_wide = finite.size and finite.min() > 0 and finite.max() > finite.min()
    return LogNorm(finite.min(), finite.max()) if is_wide else None
