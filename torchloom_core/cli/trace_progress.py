"""Show how far the reading of a bundle's telemetry is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextmanager
def reading() -> Iterator[Callable[[Path, int, int], None]]:
    """Yield what is told of a file, its rows so far, and all of them; gone without a trace."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    out = Console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        bar_of: dict[Path, TaskID] = {}

        def heard(path: Path, done: int, rows: int) -> None:
            if path not in bar_of:
                bar_of[path] = progress.add_task(path.name, total=rows)
            progress.update(bar_of[path], completed=done, visible=done < rows)

        yield heard
