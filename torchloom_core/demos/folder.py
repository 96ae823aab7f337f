"""The folder of a demo, and the files in it."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from torchloom_core.floor.errors import StateError

ACTS = ("without", "with")
RUN = "run"
PLOT = "demo.png"
SUMMARY = "summary.json"
MARK = "demo.mark"
"""File with the mark of the folder's last demo; the running demo locks it."""


@contextmanager
def locked(folder: Path) -> Iterator[TextIO]:
    """Lock a folder for one demo; yields the file with the last demo's mark.

    Raises StateError if the folder has other content than an earlier demo, cannot be written, or is
    locked.
    """
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
