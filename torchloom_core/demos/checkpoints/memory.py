"""The memory of the demo's nodes: files that outlive killed processes, removed with the demo."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_PARENTS = (Path("/dev/shm"), Path(tempfile.gettempdir()))


def free_memory(run: Path) -> None:
    """Remove the memory of the nodes and of the trainers that a demo's journals name."""
    own = f"torchloom-store-{os.getuid()}-"
    for journal in run.glob("*.jsonl"):
        rows = list(_rows(journal))
        for folder in {Path(row.get("memory", "")) for row in rows}:
            if folder.parent in _PARENTS and folder.name.startswith(own):
                shutil.rmtree(folder, ignore_errors=True)
        for pid in {row["pid"] for row in rows if "pid" in row}:
            for slots in _PARENTS[0].glob(f"torchloom-{os.getuid()}-{pid}-*"):
                slots.unlink(missing_ok=True)


def _rows(journal: Path) -> Iterator[dict[str, Any]]:
    with journal.open("rb") as lines:
        for line in lines:
            with suppress(ValueError):  # cut off by a kill
                yield json.loads(line)
