"""Events with their times, one JSON line each, for ``judge.py``."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMELINE = "timeline.jsonl"
REQUESTS = "requests.jsonl"

Row = dict[str, Any]


class Record:
    """A file of JSON lines, each with the time ``t``, seconds since the Unix epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: str, **fields: object) -> None:
        """Write a line at once."""
        with self._path.open("a") as file:
            file.write(json.dumps({"t": time.time(), "event": event, **fields}) + "\n")


def note(event: str, **fields: object) -> None:
    """Add a line to the journal of this incarnation of a trainer."""
    Record(Path(os.environ["CHAOS_JOURNAL"])).add(event, **fields)


def rows(path: Path) -> list[Row]:
    """Return every whole line of a file, none if there is no such file."""
    return list(_rows(path)) if path.exists() else []


def _rows(path: Path) -> Iterator[Row]:
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)
