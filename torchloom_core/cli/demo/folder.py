"""The folder of a demo, and what lies in it when it is over."""

import shutil
from pathlib import Path

from torchloom_core.errors import StateError

ACTS = ("without", "with")
RUN = "run"
PLOT = "demo.png"
SUMMARY = "summary.json"


def make_room(folder: Path) -> None:
    """Remove an earlier demo, of whatever scenario, and nothing else.

    Raises
    ------
    StateError
        If ``folder`` holds anything but an earlier demo, or cannot be written.
    """
    runs = {*ACTS, RUN}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = sorted({path.name for path in folder.iterdir()} - {*runs, PLOT, SUMMARY})
        if strange:
            raise StateError(
                f"{folder}: need an empty folder or an earlier demo's, found {strange[0]!r}"
            )
        for run in runs:
            if (folder / run).exists():
                shutil.rmtree(folder / run)
        for name in (PLOT, SUMMARY):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"{folder}: cannot be written: {error.strerror}") from None
