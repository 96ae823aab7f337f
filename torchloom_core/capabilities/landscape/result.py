"""A loss landscape as a table and as a plot."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from torchloom_core.capabilities.standby_task_result import saved_figure, table_of
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.wire.landscape import Curvature, Plane
from torchloom_core.wire.standby_task import Loss

_COLOUR = "#1f6f8b"
_PATH_COLOUR = "#ffffff"


def table(seen: Landscape) -> Table:
    """Return the results, one per row."""
    title = f"loss around the newest weights, computed on {seen.worker or 'no worker'}"
    return table_of(title, _rows(seen))


def draw(path: Path, seen: Landscape) -> None:
    """Save a plot: the line along the update, and the plane with the run's path."""
    with saved_figure(path, 11, 4.8) as figure:
        line, plane = figure.subplots(1, 2)
        _draw_line(line, seen)
        _draw_plane(figure, plane, seen)
        figure.suptitle("Loss around the run's newest weights", x=0.02, ha="left")


def _rows(seen: Landscape) -> Iterator[tuple[str, str]]:
    if seen.bend is not None:
        yield from _of_bend(seen.bend)
    if seen.line:
        at = [(loss, f"{share:.4g} x the update") for share, loss in seen.line.items()]
        yield "line", _spread(at)
    if seen.plane is not None:
        yield "plane", _of_plane(seen.plane)
        yield (
            "",
            _spread(
                [
                    (loss, f"({_along(seen.plane, row):.3g}, {_along(seen.plane, column):.3g})")
                    for (row, column), loss in seen.cells.items()
                ]
            ),
        )
    if seen.strangers:
        yield "left out", f"results of {', '.join(seen.strangers)}: computed for other weights"
    if seen.end is not None:
        why = f": {seen.end.why}" if seen.end.why else ""
        yield "evaluated", f"{seen.end.points} points in {seen.end.seconds:.1f} s{why}"


def _of_bend(bend: Curvature) -> Iterator[tuple[str, str]]:
    if bend.of_step >= 0:
        yield "from", f"step {bend.of_step} of the run"
    yield "loss", f"{bend.loss:.6g}"
    along = "the optimizer's step" if bend.along == "step" else "the gradient, with a rate of 1"
    yield "update", f"{along}; norm {bend.length:.4g}"
    if bend.critical_step is not None:
        yield "critical step", f"{bend.critical_step:.6g} x the update"
    elif bend.sharpness is not None:
        yield "critical step", "none in the measured range: the loss only falls"
    else:
        yield "critical step", "none: the loss rises along the update"
    if bend.sharpness is not None:
        long = ", the update is too long" if bend.sharpness > 2.0 else ""
        yield "sharpness", f"{bend.sharpness:.6g}{long}"
    if bend.curvature is not None:
        yield "curvature", f"{bend.curvature:.6g} per unit length squared"


def _of_plane(plane: Plane) -> str:
    if plane.ways == "random":
        return f"random directions, each filter scaled to {plane.reach:g} x the norm of its weights"
    explained = plane.variance_explained or (0.0, 0.0)
    off = max((off for _, _, off in plane.path), default=0.0)
    shown = " + ".join(f"{share:.1%}" for share in explained)
    return (
        f"along {len(plane.path)} checkpoints: {shown} of their variance, "
        f"up to {off:.3g} off the plane"
    )


def _spread(found: list[tuple[Loss, str]]) -> str:
    """Return the number of points, and where the loss is smallest."""
    numbers = [(loss, place) for loss, place in found if loss is not None]
    none = len(found) - len(numbers)
    text = f"{len(found)} points" + (f", {none} not finite" if none else "")
    if not numbers:
        return text
    least, place = min(numbers)
    most = max(loss for loss, _ in numbers)
    return f"{text}; from {least:.4g} at {place} to {most:.4g}"


def _along(plane: Plane, index: int) -> float:
    return plane.reach * (2 * index / (plane.side - 1) - 1) if plane.side > 1 else math.nan


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
