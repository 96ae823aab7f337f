"""The folder of a demo, and what lies in it when it is over."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from torchloom_core.errors import StateError

ACTS = ("without", "with")
RUN = "run"
PLOT = "demo.png"
SUMMARY = "summary.json"
MARK = "demo.mark"
"""The mark of the demo that played here last, and the lock of the one that plays."""


@contextmanager
def held(folder: Path) -> Iterator[TextIO]:
    """Hold a folder for one demo; yields the file with the last one's mark.

    Raises
    ------
    StateError
        If ``folder`` holds anything but an earlier demo, cannot be written, or is held.
    """
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = {*ACTS, RUN, PLOT, SUMMARY, MARK}
        strange = sorted({path.name for path in folder.iterdir()} - known)
        if strange:
            raise StateError(
                f"{folder}: need an empty folder or an earlier demo's, found {strange[0]!r}"
            )
        file = (folder / MARK).open("a+", encoding="utf-8")
    with file:
        with _told(folder):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


def clear(folder: Path) -> None:
    """Remove an earlier demo, of whatever scenario, and nothing else.

    Raises
    ------
    StateError
        If it cannot be removed.
    """
    with _told(folder):
        for run in (*ACTS, RUN):
            if (folder / run).exists():
                shutil.rmtree(folder / run)
        for name in (PLOT, SUMMARY):
            (folder / name).unlink(missing_ok=True)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise StateError(f"{folder}: another demo plays there") from None
    except OSError as error:
        raise StateError(f"{folder}: cannot be written: {error.strerror}") from None
