"""Results of standby tasks as tables and plots, as ``preview`` and ``landscape`` show them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.plain_text import plain_line


def table_of(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return rows of a name and a text, which stays within its row."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, text in rows:
        table.add_row(name, Text(plain_line(text, len(text))))
    return table


@contextmanager
def saved_figure(path: Path, width_in: float, height_in: float) -> Iterator[Any]:
    """Yield a figure to draw on, then save it; raise StateError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None
