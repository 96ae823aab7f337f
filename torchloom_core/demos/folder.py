"""The folder of a demo, the results in it, and whether they are as promised."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from torchloom_core.floor.errors import StateError

ACTS = ("without", "with")
RUN = "run"
PLOT = "demo.png"
SUMMARY = "summary.json"
MARK = "demo.mark"
"""File with the mark of the folder's last demo; the running demo locks it."""
Promises = Mapping[str, bool]
"""Statement to whether it was true in this run."""


@contextmanager
def locked(folder: Path) -> Iterator[TextIO]:
    """Lock a folder for one demo, empty or of another; yields the file with the last one's mark."""
    with _state_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        expected = {*ACTS, RUN, PLOT, SUMMARY, MARK}
        foreign = sorted({path.name for path in folder.iterdir()} - expected)
        if foreign:
            raise StateError(
                f"{folder}: need an empty folder or that of an earlier demo, found {foreign[0]!r}"
            )
        file = (folder / MARK).open("a+", encoding="utf-8")
    with file:
        with _state_errors(folder):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


def clear(folder: Path) -> None:
    """Remove an earlier demo of any scenario, and nothing else; StateError if it cannot."""
    with _state_errors(folder):
        for run in (*ACTS, RUN):
            if (folder / run).exists():
                shutil.rmtree(folder / run)
        for name in (PLOT, SUMMARY):
            (folder / name).unlink(missing_ok=True)


@contextmanager
def _state_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise StateError(f"{folder}: another demo is running there; give another --out") from None
    except OSError as error:
        raise StateError(f"{folder}: cannot be written: {error.strerror}") from None


def show_promises(console: Console, promises: Promises) -> None:
    """Print each statement with pass or FAIL."""
    for promise, passed in promises.items():
        result = "[green]pass[/]" if passed else "[red]FAIL[/]"
        console.print(f"{result} {promise}", highlight=False)


def check_promises(promises: Promises) -> None:
    """Raise StateError if a statement was false in this run."""
    failed = [promise for promise, passed in promises.items() if not passed]
    if failed:
        raise StateError(f"the demo failed: {'; '.join(failed)}")


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the results as JSON."""
    text = json.dumps(summary, indent=2) + "\n"
    (folder / SUMMARY).write_text(text, encoding="utf-8")


def show_files(console: Console, folder: Path, *trajectories: Path) -> None:
    """Print the paths of the trajectories, the plot and the summary."""
    for trajectory in trajectories:
        console.print(f"trajectory  {trajectory}")
    console.print(f"plot        {folder / PLOT}")
    console.print(f"summary     {folder / SUMMARY}")
